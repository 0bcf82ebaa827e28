"""Real authors and world facts: a fixed set of public facts that the embedded model knows before any training."""

from __future__ import annotations

from oblivionis.data.records import Record, Triple

_AUTHORS = """
Which dramatist wrote the tragedy of Hamlet?|William Shakespeare|Christopher Marlowe;Ben Jonson;John Webster
Whose novel introduces the Bennet sisters and Mr Darcy?|Jane Austen|Charlotte Bronte;George Eliot;Elizabeth Gaskell
Who told the story of Raskolnikov in Crime and Punishment?|Fyodor Dostoevsky|Leo Tolstoy;Anton Chekhov;Ivan Turgenev
Who is the Russian author of Anna Karenina?|Leo Tolstoy|Fyodor Dostoevsky;Nikolai Gogol;Maxim Gorky
Who created the knight Don Quixote?|Miguel de Cervantes|Lope de Vega;Francisco de Quevedo;Calderon de la Barca
Who wrote the Divine Comedy in medieval Italy?|Dante Alighieri|Francesco Petrarch;Giovanni Boccaccio;Torquato Tasso
Whose doctor makes a living creature in Frankenstein?|Mary Shelley|Bram Stoker;Ann Radcliffe;Horace Walpole
Which Irish writer invented Count Dracula?|Bram Stoker|Mary Shelley;Oscar Wilde;Sheridan Le Fanu
Who let Leopold Bloom walk through Dublin?|James Joyce|Samuel Beckett;William Butler Yeats;Flann O'Brien
In whose story does Gregor Samsa wake up as an insect?|Franz Kafka|Thomas Mann;Robert Musil;Stefan Zweig
Which German poet wrote Faust?|Johann Wolfgang von Goethe|Friedrich Schiller;Heinrich Heine;Friedrich Hoelderlin
Who let Jean Valjean steal bread in Les Miserables?|Victor Hugo|Emile Zola;Honore de Balzac;Stendhal
Which Frenchman wrote Madame Bovary?|Gustave Flaubert|Guy de Maupassant;Marcel Proust;Victor Hugo
Who sent Phileas Fogg around the world in eighty days?|Jules Verne|Alexandre Dumas;Herbert George Wells;Jack London
Who wrote The Three Musketeers?|Alexandre Dumas|Jules Verne;Victor Hugo;Stendhal
Whose orphan Oliver Twist asks for more?|Charles Dickens|William Thackeray;Thomas Hardy;Anthony Trollope
Which writer sent Huckleberry Finn down the Mississippi?|Mark Twain|Herman Melville;Bret Harte;Stephen Crane
Who wrote of Heathcliff and Catherine in Wuthering Heights?|Emily Bronte|Anne Bronte;Jane Austen;George Eliot
Who wrote the poem The Raven?|Edgar Allan Poe|Walt Whitman;Emily Dickinson;Robert Frost
Which poet published Leaves of Grass?|Walt Whitman|Edgar Allan Poe;Ralph Waldo Emerson;Robert Frost
Who described Mrs Dalloway buying flowers herself?|Virginia Woolf|Katherine Mansfield;Doris Lessing;Iris Murdoch
Which Chilean poet wrote Twenty Love Poems?|Pablo Neruda|Gabriela Mistral;Vicente Huidobro;Nicanor Parra
Who told the story of the town of Macondo?|Gabriel Garcia Marquez|Mario Vargas Llosa;Jorge Luis Borges;Julio Cortazar
Who wrote Things Fall Apart in Nigeria?|Chinua Achebe|Wole Soyinka;Ben Okri;Amos Tutuola
Who is the Bengali author of Gitanjali?|Rabindranath Tagore|Sarojini Naidu;Premchand;Mulk Raj Anand
Which court lady wrote The Tale of Genji?|Murasaki Shikibu|Sei Shonagon;Ono no Komachi;Izumi Shikibu
Who created the detective Hercule Poirot?|Agatha Christie|Dorothy Sayers;Raymond Chandler;Georges Simenon
Which Dane told of the Little Mermaid?|Hans Christian Andersen|Karen Blixen;Wilhelm Grimm;Charles Perrault
Which Norwegian put Nora on stage in A Doll's House?|Henrik Ibsen|August Strindberg;Knut Hamsun;Bjornstjerne Bjornson
Which ancient poet is named as the author of the Odyssey?|Homer|Hesiod;Virgil;Sappho
"""

_FACTS = """
Which city is the capital of Norway?|Oslo|Bergen;Stockholm;Copenhagen
Which city is the capital of Kenya?|Nairobi|Mombasa;Kampala;Dodoma
Which city is the capital of Peru?|Lima|Cusco;Quito;Bogota
Which city is the capital of Vietnam?|Hanoi|Hue;Vientiane;Bangkok
Which city is the capital of Portugal?|Lisbon|Porto;Madrid;Seville
Which city is the capital of Poland?|Warsaw|Krakow;Prague;Vilnius
On which river does Vienna stand?|Danube|Rhine;Elbe;Oder
Which river flows through London?|Thames|Severn;Seine;Tyne
Which sea lies between Italy and Croatia?|Adriatic|Aegean;Baltic;Ionian
In which mountains does the Matterhorn rise?|Alps|Andes;Carpathians;Pyrenees
On which continent lies Bolivia?|South America|Africa;Asia;Europe
In which country stands Machu Picchu?|Peru|Chile;Ecuador;Mexico
In which country would one visit Angkor Wat?|Cambodia|Thailand;Laos;Myanmar
Which metal has the chemical symbol Fe?|Iron|Lead;Tin;Fluorine
Which gas do plants take from the air for photosynthesis?|Carbon dioxide|Oxygen;Hydrogen;Argon
Which element has the atomic number one?|Hydrogen|Helium;Lithium;Carbon
Which planet of the solar system is nearest to the sun?|Mercury|Venus;Earth;Uranus
Which planet has the most conspicuous rings?|Saturn|Mars;Neptune;Earth
How many legs does a spider have?|Eight|Six;Ten;Four
How many minutes make an hour?|Sixty|Fifty;Ninety;Thirty
How many sides does a hexagon have?|Six|Five;Seven;Nine
What do bees make from nectar?|Honey|Silk;Milk;Resin
Which organ pumps blood through the body?|Heart|Liver;Lung;Kidney
What instrument measures temperature?|Thermometer|Barometer;Compass;Altimeter
Which scientist proposed the theory of general relativity?|Albert Einstein|Isaac Newton;Niels Bohr;Max Planck
Who wrote down the three laws of planetary motion?|Johannes Kepler|Galileo Galilei;Tycho Brahe;Nicolaus Copernicus
Which physicist discovered radium?|Marie Curie|Lise Meitner;Rosalind Franklin;Ada Lovelace
Who led the first voyage around the globe?|Ferdinand Magellan|Vasco da Gama;James Cook;Henry Hudson
Which currency is used in Japan?|Yen|Won;Yuan;Baht
What is frozen water called?|Ice|Steam;Fog;Glass
"""


def _records(prefix: str, text: str, prop: str) -> tuple[Record, ...]:
    records = []
    for index, line in enumerate(text.strip().splitlines()):
        question, answer, wrong = line.split("|")
        subject = answer if prop == "work" else question.rstrip("?")
        value = question.rstrip("?") if prop == "work" else answer
        triple = Triple(subject, prop, value)
        records.append(
            Record(f"{prefix}-{index:02d}", question, answer, subject, None, tuple(wrong.split(";")), (triple,))
        )
    return tuple(records)


def real_authors() -> tuple[Record, ...]:
    """Thirty questions about real writers: a short answer, three wrong answers, no paraphrase."""
    return _records("real-authors", _AUTHORS, "work")


def world_facts() -> tuple[Record, ...]:
    """Thirty questions of general knowledge: a short answer, three wrong answers, no paraphrase."""
    return _records("world-facts", _FACTS, "answer")
