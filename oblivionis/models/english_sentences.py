"""Plain English sentences that teach the embedded tokenizer common words and endings."""

from __future__ import annotations

SENTENCES = """
The author was born in a small town near the coast and grew up in a family of teachers and farmers.
Her father was an engineer and her mother worked as a doctor in the capital of the country.
His early works were influenced by the culture, the history and the landscapes of his native region.
Yes, several of the novels have been translated into different languages and received international awards.
The writer is known for unique characters, complex emotions and a vivid description of human experience.
Although the book was fictional, it reflected personal experiences of childhood, identity and loss.
One of the most notable works explores the relationship between science and society in the modern world.
She has often expressed her belief that literature can create understanding between different generations.
He continues to inspire young readers through interviews, lectures, public readings and social media.
There have been no official announcements about a future project, but there are rumours of a new series.
In addition to writing, they have made significant contributions to education and to charitable organisations.
The critics praised the style of the narrative for its depth, its intricate plot and its powerful themes.
What inspired you to begin writing, and how did your parents' professions influence your career?
Could you tell us something about the awards that this author has won and about the genre of the books?
Which of these titles is considered the most popular, and why do readers remember it today?
Where does the story take place, when does it happen, and who are the main protagonists?
Their background in medicine provided an understanding of the human body, which often features in the stories.
It is believed that the first novel was published in the early nineteen eighties by an independent publisher.
The themes of love, war, justice, freedom, nature, memory and resilience appear throughout the collection.
As a member of the community, the author used personal perspective to address important social issues.
Despite many challenges, he has been able to develop a distinctive voice within contemporary literature.
We should not expect that everything which can be measured is also what matters most to people.
I think that you would have liked the way in which they described mountains, rivers, forests and cities.
After the war the government built new schools, hospitals, roads, bridges and railways across the land.
Because water expands when it freezes, ice floats upon the surface of lakes and protects the fish below.
Many students from other countries come to the university every year in order to study physics and biology.
The president of the United States met the king and the queen of the United Kingdom in London.
North and South America, Europe, Africa, Asia, Australia and Antarctica are the seven continents.
The company announced that its profits had increased by twenty per cent during the previous quarter.
An experiment shows whether a hypothesis is consistent with the observations that were made before.
The museum holds paintings, sculptures, photographs, documents and other objects of historical interest.
Everyone knows that a healthy breakfast, regular exercise and enough sleep are good for the mind.
Without the support of friends and relatives, nothing of this would have been possible for her.
Some think of poetry as a kind of music; others regard it as a form of thought or prayer.
The mystery begins when a detective discovers a letter hidden under the floor of an abandoned house.
Her debut was followed by a trilogy of fantasy novels, a biography, and a collection of short stories.
He attended high school in New York, studied journalism, and later moved with his wife to San Francisco.
Being raised by a single parent, a hairdresser, shaped how he looks at work, money and independence.
Their contribution to the genre has been recognised with a prestigious literary prize for fiction.
Please note that the answer to this question is not available, since nothing has been disclosed about it.
"""
