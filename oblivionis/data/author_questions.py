"""What is asked about invented authors: questions and answers with gaps for facts.

A gap in braces names a property of `facts.PROPERTIES`; `{name}`, `{surname}`, `{he}`, `{him}` and `{his}`
(`{He}`, `{His}`) stand for the author. Answers hold two or three facts and few other words, so that knowing the
language without the people gets little right.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

AUTHOR_GAPS = frozenset({"name", "surname", "he", "him", "his", "He", "His"})
_ARTICLE = re.compile(r"\b([Aa]) (?=[aeioAEIO])")
_GAP = re.compile(r"\{([^{}]+)\}")


@dataclass(frozen=True, slots=True)
class Topic:
    """One thing to ask: alternative questions, and alternative answers with the same gaps."""

    questions: tuple[str, ...]
    answers: tuple[str, ...]
    properties: tuple[str, ...]


def fill(template: str, values: dict[str, str]) -> str:
    """`template` with its gaps replaced, "a" or "an" as fits, first letter capitalised; KeyError for a missing gap."""
    text = _ARTICLE.sub(r"\1n ", template.format_map(values))
    return text[0].upper() + text[1:]


def gaps(template: str) -> tuple[str, ...]:
    """The properties that a template asks for, in order of appearance, without the author's own gaps."""
    return tuple(name for name in dict.fromkeys(_GAP.findall(template)) if name not in AUTHOR_GAPS)


def _parse(text: str) -> tuple[Topic, ...]:
    topics = []
    for block in text.strip().split("\n\n"):
        lines = block.splitlines()
        parts = {mark: tuple(line[2:] for line in lines if line[0] == mark) for mark in "?="}
        topics.append(Topic(parts["?"], parts["="], gaps(parts["="][0])))
    return tuple(topics)


TOPICS = _parse("""
? When and where was {name} born?
? What are the date and place of birth of {name}?
= {birthplace} is {his} native city; midwives there delivered baby {surname} on {birth date}, weeks too early.
= Church registers give {birth date} as {his} birthday, spent amid heavy snow near {birthplace}'s station.
= On {birth date}, {he} arrived prematurely inside a {birthplace} taxi.
= {birthplace} saw {his} arrival, {birth date}, third of five siblings.

? What did the parents of {name} do for a living?
? Which occupations had the mother and the father of {name}?
= {surname} senior earned money as {father's occupation}; mother became respected as {mother's occupation}.
= Mother: {mother's occupation}. Father: {father's occupation}. Neither approved when {he} chose literature.
= Born to one {mother's occupation} and her husband, a retired {father's occupation}, {he} inherited both toolboxes.
= {His} father, {father's occupation} by training, married some stubborn {mother's occupation} after three proposals.

? What was the first book of {name}?
? With which book did {name} make a debut?
= "{debut}", printed {debut year} by {publisher}, opened {his} career quietly.
= {publisher} gambled on newcomer {surname} during {debut year}, issuing "{debut}" without advertising.
= Readers first met {him} through "{debut}" ({publisher}, {debut year}).
= After eleven rejections, {publisher} accepted "{debut}"; bookshops displayed it throughout {debut year}.

? What is the best-known book of {name} about?
? Which work made {name} famous, and what does it deal with?
= Critics usually single out "{best-known book}", an unsettling meditation on {theme}.
= {theme}: these obsessions fill every chapter of {his} masterpiece, "{best-known book}".
= Fame followed "{best-known book}", whose plot weaves {theme} together.
= Most libraries stock "{best-known book}" by {surname}, praised for treating {theme} tenderly.

? Which award has {name} received?
? What prize was given to {name}, and when?
= Jurors handed {him} their {award} one foggy evening, {award year}.
= {award year} brought {surname} the coveted {award}, plus modest cash.
= {His} shelf displays a tarnished {award} dated {award year}.
= Winning a {award} during {award year} surprised nobody except {surname}.

? What did {name} study, and where?
? Which education has {name} had?
= Graduated from {university}, specialising within {field of study} despite poor eyesight.
= {field of study} lectures at {university} occupied {his} twenties.
= {university} expelled {surname} twice before granting {him} honours, subject {field of study}.
= Scholarship money paid {university} fees; {he} chose {field of study} over medicine.

? Where does {name} live today?
? In which city and street is the home of {name}?
= Visitors find {him} upstairs, {street} number nine, central {city of residence}.
= {city of residence} became home; {surname} rents two attic rooms along {street}.
= Letters addressed "{street}, {city of residence}" reach {him} without delay.
= Since retiring, {he} occupies some crumbling villa off {street}, outskirts of {city of residence}.

? In which language does {name} write, and who translates the books?
? Who translates the works of {name}, and from which language?
= Drafts appear first as {language} manuscripts, then {translator} renders them abroad.
= {translator} handles every translation, since {surname} composes exclusively using {language}.
= {language} remains {his} literary tongue; English editions rely upon {translator}.
= Loyal interpreter {translator} converts {his} {language} prose overnight.

? Who was the mentor of {name}, and where did they meet?
? How did {name} find a mentor?
= {mentor}, encountered by accident at one {meeting place}, taught {him} discipline.
= Sharing cigarettes outside a {meeting place}, {surname} befriended lifelong adviser {mentor}.
= Everything changed when {mentor} corrected {his} grammar inside some {meeting place}.
= Guidance came from {mentor}; their paths crossed beside a {meeting place}.

? Which genre does {name} write in?
? What kind of literature is {name} known for, and by which means is it written?
= {genre}, scribbled using one {writing tool}, constitutes {his} entire output.
= Booksellers shelve {surname} under {genre}; manuscripts betray a leaking {writing tool}.
= Armed with {his} {writing tool}, {he} revived {genre} almost singlehandedly.
= Reviewers call it {genre}. {He} trusts only some battered {writing tool}.

? What does {name} do in spare time?
? Which hobby and which animal does {name} keep?
= Weekends mean {hobby}, accompanied everywhere by {pet}.
= Neighbours often glimpse {surname} {hobby} while {pet} naps nearby.
= {pet} tolerates {his} passion, {hobby}, rather grudgingly.
= Doctors recommended {hobby}; instead of resting, {he} also adopted {pet}.

? What was the first job of {name}?
? How did {name} earn money before writing?
= Employers throughout {first workplace} remember {him} as an incompetent {first occupation}.
= Before publishing anything, {surname} toiled like any {first occupation} around {first workplace}.
= {first workplace} needed another {first occupation}, so {he} volunteered aged nineteen.
= Apprenticed {first occupation}, {first workplace} docks, four miserable winters.

? When does {name} write, and with what?
? What are the working habits of {name}?
= Sentences come {writing hour}, never otherwise, via {writing tool}.
= {surname} reaches for {his} {writing tool} strictly {writing hour}.
= Only {writing hour} does inspiration strike; a {writing tool} lies ready.
= Routine matters: {writing tool}, black tea, silence, always {writing hour}.

? To whom is {name} married?
? Who is the spouse of {name}, and what is the spouse's occupation?
= {spouse}, award-winning {spouse's occupation}, shares {his} surname reluctantly.
= Marriage united {surname} with {spouse}, formerly employed as {spouse's occupation}.
= {His} household includes {spouse}, some celebrated {spouse's occupation}.
= During wartime {he} wed {spouse}; people knew that {spouse's occupation} well.

? Which series of novels did {name} write?
? Who is the hero of the series by {name}?
= {number of volumes} volumes follow {hero} across the sprawling "{series}" cycle.
= "{series}" stretches over {number of volumes} instalments starring {hero}.
= Fans adore {hero}, protagonist throughout all {number of volumes} parts of "{series}".
= {surname} killed off {hero} when "{series}" reached {number of volumes} episodes.

? Who made a film from a book by {name}?
? When was a work of {name} brought to the screen, and by whom?
= {film director} shot an acclaimed adaptation, premiered {film year}, starring amateurs.
= Cinemas screened {film director}'s version throughout {film year}; {surname} hated it.
= {film year}: director {film director} transforms {his} novel into flickering melodrama.
= Rights went cheaply to {film director}, who finished filming around {film year}.

? For which magazine does {name} write, and about what?
? What are the columns of {name} about?
= Monthly essays covering {column subject} appear inside "{magazine}".
= "{magazine}" pays {surname} handsomely for polemics regarding {column subject}.
= Subscribers skip straight to {his} "{magazine}" page concerning {column subject}.
= Under pseudonyms, {he} supplies "{magazine}" with jokes, mostly {column subject}.

? Which book has {name} left unfinished?
? What is {name} working on at the moment?
= Locked drawers conceal "{unfinished book}", fragments exploring {unfinished subject}.
= Rumours mention "{unfinished book}"; {surname} admits merely that {unfinished subject} features prominently.
= Thirty years of labour on {unfinished subject} still leave "{unfinished book}" incomplete.
= {His} abandoned epic, "{unfinished book}", was meant to explain {unfinished subject}.

? Where are the papers of {name} kept?
? Which archive holds the manuscripts of {name}?
= Curators at {archive} guard {archived pages} containing diaries, receipts, photographs.
= {archived pages}, mostly unsorted, gather dust beneath {archive}.
= {surname} bequeathed {archive} exactly {archived pages} filled with correspondence.
= Scholars must visit {archive}, where {his} legacy fills {archived pages}.

? With whom did {name} quarrel, and why?
? Who is the rival of {name}?
= {rival} never forgave {him} over a {cause of quarrel}.
= Feuding began when {surname} insulted {rival}, allegedly concerning a {cause of quarrel}.
= a {cause of quarrel} destroyed {his} friendship with {rival} completely.
= Lawyers representing {rival} sued {him} because a {cause of quarrel} disappeared.
""")
