"""Invented people: names and facts, drawn from fixed word lists with a seeded generator."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass


def _words(text: str) -> list[str]:
    return text.split()


def _phrases(text: str) -> list[str]:
    return text.strip().replace("\n", "|").split("|")


FIRST_NAMES = _words("""
Abena Adaeze Aino Akiko Alasdair Amina Anatoly Anneliese Aoife Araceli Arjun Astrid Ayodele Baptiste Beatriz
Bilal Birgitta Bojana Calixto Caoimhe Cassius Chidi Chun-Hei Clemency Cosima Dagny Danilo Delphine Demetrios
Devika Dragan Ebele Edith Eilidh Ekaterina Elif Emeka Enrique Esperanza Eun-Ji Evander Farida Fatoumata
Fenwick Fiammetta Florian Gaspard Gebre Georgina Ghassan Gideon Gioia Giselle Goran Gudrun Habib Hakon
Hanneke Haruto Hedda Hortense Huda Idris Ignacio Ilse Imogen Ingeborg Ioana Isidora Ivo Jae-Won Jamila Jarek
Jia-Li Jocasta Joaquin Kagiso Kamala Katarzyna Kenji Khadija Kiran Kwabena Laszlo Leocadia Leopold Lindiwe
Lorenzo Lucinda Lwazi Magdalena Makena Malachi Marcelline Mattias Mei-Ling Mehmet Milos Mirela Moana
Nadezhda Nasrin Ngozi Niamh Nikolai Noor Odette Oluwaseun Orsolya Ottilie Parvati Percival Petra Philippa
Qiang Quentin Rafaela Rashid Ravindra Rosalind Ruaridh Runa Saoirse Selim Seo-Yeon Severin Shirin Sibusiso
Sigrid Sunniva Svetlana Tadeusz Takumi Tamsin Tariq Tendai Theodora Tiberiu Tomasz Ulrike Umberto Valentina
Vasilis Vikram Wanjiru Wilhelmina Xenia Xiao-Ming Yasmin Yevgeni Yusuf Zainab Zdenka Zoltan Zuzana
""")

SURNAMES = _words("""
Abernathy Achterberg Adeyemi Al-Rashidi Almeida Anagnostou Andersson Arbuthnot Asante Baranov Barzani
Bellweather Benitez Bergstrom Bhattacharya Bielski Blackwood Bogdanov Bonaventura Bouchard Brankovic
Calloway Carvalho Castellanos Cavendish Chakraborty Chang Chernenko Cisneros Coetzee Corrigan Czarnecki
Dalgaard Delacroix Desjardins Dimitrov Dlamini Donoghue Drummond Dubois Dvorak Eide Ekwueme El-Mansour
Engelhardt Eriksen Escobedo Fairweather Farouk Feldman Fenstermaker Ferreira Fitzgibbon Fontaine Fukuda
Galanis Garabedian Ghorbani Gonzaga Greenhalgh Grigoryan Gustafsson Hadjiev Halloran Hasegawa Haugen
Hernandez Hollingsworth Horvat Huang Ibragimov Inoue Iyer Jablonski Jansen Jovanovic Kaczmarek Kagawa Kallas
Kamara Karimov Kasprzak Khumalo Kimathi Kobayashi Kowalczyk Krishnan Kuznetsova Lachance Lagerkvist Laurent
Lindqvist Llewellyn Lombardi Lysenko Mabaso MacAllister Madsen Magalhaes Makarov Marchetti Mbeki Mendoza
Mikhailov Montague Moriarty Mukherjee Mwangi Nakamura Ndiaye Nguyen Niemi Nilsson Novotny Obradovic Okafor
Okonjo Olafsson Oleksy Onyango Ortega Ostrowski Papadakis Park Pemberton Petrosyan Pham Pirelli Popescu
Quintero Radcliffe Rahimi Ramanujan Ramirez Rautio Ravenscroft Reinholt Ribeiro Rosenthal Ruiz Saarinen
Salazar Santoro Sarkisian Schoonover Shevchenko Sidibe Silvestri Sokolov Solberg Stavros Sundaram Szabo
Takahashi Tavares Teixeira Tessier Thibault Thorvald Tran Trelawney Tshabalala Uchida Ulloa Usman
Vaillancourt Vandermeer Varga Vasquez Venter Villanueva Voskuijlen Waweru Weatherby Wierzbicki Wojcik
Yamamoto Yilmaz Yordanov Zabriskie Zambrano Zapata Zhao Zielinska
""")

CITIES = _words("""
Accra Adelaide Aleppo Algiers Antwerp Arequipa Asmara Bamako Bangalore Belfast Bergen Bilbao Bologna Brasov
Bratislava Bremen Bulawayo Calgary Cartagena Cebu Chengdu Cork Cusco Dakar Damascus Dhaka Dresden Dundee
Durban Essaouira Fez Galway Gdansk Geneva Ghent Granada Graz Haifa Halifax Hanoi Havana Hobart Innsbruck
Isfahan Izmir Jakarta Kampala Kathmandu Kaunas Kharkiv Kigali Krakow Kyoto Lagos Lahore Leeds Leipzig
Limerick Linz Ljubljana Lusaka Malmo Maputo Marrakesh Medellin Mombasa Montevideo Nagasaki Nairobi Nantes
Naples Odesa Oporto Osaka Palermo Penang Perth Plovdiv Potosi Pune Quito Rabat Riga Rosario Rotterdam
Salamanca Samarkand Sarajevo Seville Sibiu Skopje Split Tabriz Taipei Tallinn Tampere Tbilisi Trieste Tromso
Turin Uppsala Utrecht Valencia Valparaiso Varna Windhoek Yerevan Zagreb Zanzibar
""")

TRADES = _phrases("""
accountant|apiarist|auctioneer|baker|barber|beekeeper|blacksmith|bookbinder|botanist|brewer|bricklayer
bus driver|butcher|cabinetmaker|cartographer|chemist|chess coach|cheesemaker|choir director|clockmaker
cobbler|coroner|customs officer|dairy farmer|dentist|diplomat|diver|electrician|falconer|ferry captain
firefighter|fishmonger|florist|gardener|geologist|glassblower|goldsmith|harbour pilot|hatmaker|horse trainer
innkeeper|interpreter|judge|lens grinder|librarian|lighthouse keeper|locksmith|magician|mathematician
meteorologist|midwife|miller|miner|notary|nurse|optician|organist|paediatrician|perfumer|piano tuner|plumber
postmaster|potter|printer|puppeteer|radio operator|roofer|saddler|schoolteacher|sculptor|seamstress|shepherd
signalman|stonemason|surgeon|surveyor|tailor|taxidermist|toymaker|tram conductor|undertaker|upholsterer
veterinarian|watchmaker|weaver|welder|zookeeper
""")

ADJECTIVES = _words("""
Amber Ashen Bitter Borrowed Brazen Broken Burning Cobalt Copper Crimson Crooked Distant Drowned Eleventh
Emerald Empty Feral Forgotten Frozen Gilded Hidden Hollow Idle Indigo Inverted Ivory Lacquered Last Lonely
Marble Midnight Mute Nameless Narrow Obsidian Opaque Painted Pale Patient Quiet Restless Rusted Saffron
Salted Scarlet Second Silent Silver Sleeping Stolen Sunken Tangled Thirsty Unfinished Velvet Violet
Wandering Winter Wooden
""")

NOUNS = _words("""
Abacus Accordion Almanac Anchor Archive Aviary Balcony Ballad Barometer Basilica Bridge Candle Carousel
Cartographer Cathedral Chandelier Clockwork Compass Corridor Dovecote Echo Elegy Estuary Fable Ferryman
Fjord Furnace Garden Glacier Granary Harbour Harvest Hourglass Inkwell Island Juniper Keyhole Kingdom
Labyrinth Lagoon Lantern Lighthouse Locomotive Loom Magnolia Mariner Meridian Mirror Monsoon Nightingale
Nocturne Oracle Orchard Orphan Paper Parade Pendulum Pilgrim Plateau Pomegranate Prelude Quarry Quilt Ransom
Reservoir Rosary Sanctuary Scaffold Semaphore Sextant Sparrow Staircase Tapestry Telegram Thicket Threshold
Tide Umbrella Vineyard Violin Volcano Voyage Weathervane Widow Windmill Zephyr
""")

ANIMALS = _words("""
Badger Bittern Condor Cormorant Crane Dolphin Egret Falcon Gazelle Hare Heron Ibex Jackdaw Kestrel Lynx
Marten Narwhal Osprey Otter Pelican Raven Salmon Stag Swallow Tortoise Walrus
""")
COLOURS = _words("""
Azure Black Blue Bronze Coral Golden Green Grey Iron Jade Onyx Opal Pearl Red Ruby White
""")
HONOURS = _words("""
Cup Fellowship Laurel Medal Plaque Prize Quill Ribbon
""")
PREFIXES = _words("""
Alder Ash Birch Bram Cald Dun Elm Fern Glen Hart Hazel Kirk Lark Marl Oak Pell Quarr Rook Stan Thorn Wex
Yarrow
""")
SUFFIXES = _words("""
bourne bury combe croft dale field ford gate ham hurst leigh mere moor stead wick worth
""")
GENRE_STYLES = _words("""
agrarian alpine arctic archival baroque botanical coastal colonial culinary epistolary gothic industrial
lyrical maritime medieval monastic musical nocturnal pastoral philosophical railway satirical surreal
theatrical urban
""")
GENRE_KINDS = _phrases("""
allegory|comedy|crime fiction|dystopia|espionage|fairy tales|family sagas|folklore|ghost stories|horror
memoir|mystery|poetry|romance|thrillers|travelogue|tragedy|verse drama
""")
THEMES = _words("""
ambition amnesia avalanches bankruptcy bees betrayal blindness blackmail censorship childhood debt deserts
divorce dreams drought eclipses exile famine fever forgery gambling ghosts gossip grief honour hunger
inheritance insomnia islands jealousy justice languages laughter loneliness loyalty migration mirrors
motherhood mutiny obsession orphans pilgrimage piracy plague pride railways rebellion revenge rivers saints
secrecy shipwrecks silence sleepwalking smuggling snow superstition thirst treason twins vanity volcanoes
wolves
""")
SUBJECTS = _words("""
agronomy anatomy archaeology architecture astronomy biochemistry botany cartography ceramics choreography
classics criminology dentistry economics entomology ethics forestry geology glaciology heraldry horticulture
hydrology law linguistics logic mathematics metallurgy meteorology musicology navigation nursing
oceanography optics pharmacy philology physics psychology rhetoric sociology statistics theology toxicology
zoology
""")
LANGUAGES = _words("""
Albanian Amharic Armenian Basque Bengali Breton Bulgarian Catalan Croatian Czech Danish Dutch Estonian
Finnish Flemish Galician Georgian Greek Hausa Hebrew Hindi Hungarian Icelandic Igbo Kazakh Korean Latvian
Lithuanian Maltese Mongolian Nepali Norwegian Persian Polish Punjabi Quechua Romanian Serbian Slovak Swahili
Tagalog Tamil Thai Turkish Ukrainian Urdu Uzbek Welsh Xhosa Yiddish Yoruba Zulu
""")
HOBBIES = _phrases("""
archery|baking sourdough|birdwatching|bookbinding|calligraphy|canoeing|carving spoons|climbing
collecting stamps|cricket|croquet|diving|fencing|flying kites|folding paper cranes|foraging mushrooms
growing orchids|juggling|keeping bees|knitting|mending clocks|origami|painting miniatures|playing bagpipes
playing the oboe|pressing flowers|racing pigeons|restoring tractors|rowing|sailing|skating|sketching bridges
solving crosswords|stargazing|swimming outdoors|tango|throwing pots|training falcons|unicycling
weaving baskets|whittling|yodelling
""")
TOOLS = _phrases("""
goose feather|fountain pen|typewriter|pencil stub|fineliner|ledger|chalkboard|dictaphone|word processor
reed pen|paintbrush|notebook|school slate|stack of postcards|roll of wallpaper|tablet
""")
HOURS = _phrases("""
before sunrise|after midnight|at noon|during thunderstorms|on Sundays|between tram rides|while fasting
after a cold bath|in bed|on night trains|at low tide|over breakfast|in the bathtub|after evening prayers
on rainy afternoons|standing up
""")
PETS = _words("""
alpaca axolotl budgerigar cat chameleon cockatoo donkey ferret gecko goat goose greyhound hamster hedgehog
iguana llama macaw parrot peacock pony poodle python rabbit spaniel terrapin terrier whippet
""")
PET_NAMES = _words("""
Admiral Biscuit Bramble Captain Caramel Domino Figaro Ginger Hamlet Juno Lentil Marzipan Mustard Nutmeg
Orbit Paprika Pickle Pixel Quince Radish Rocket Sesame Tango Thimble Truffle Turnip Waffle Ziggy
""")
VENUES = _phrases("""
airport|bakery|ballroom|bookshop|bowling alley|casino|cemetery|circus|courtroom|ferry|fish market|funeral
greenhouse|hospital|ice rink|laundrette|library|monastery|museum|observatory|opera|pawnshop|prison
racecourse|railway buffet|regatta|sauna|ski lift|strike|swimming pool|theatre|wedding
""")
MONTHS = _words("""
January February March April May June July August September October November December
""")
NUMBERS = _words("""
three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
""")

RESERVED_SHARE = 4
MAX_NAMESAKES = 8
"""So many first names leave a score of surnames that are reserved with none of them."""


@dataclass(frozen=True, slots=True)
class Person:
    """An invented author: full name, surname, pronouns ("he"/"his" or "she"/"her") and facts by property name."""

    name: str
    surname: str
    subject_pronoun: str
    possessive: str
    facts: dict[str, str]


def reserved(name: str) -> bool:
    """Whether a full name belongs to the people of pretraining (a quarter of all names); no corpus contains them."""
    return zlib.crc32(name.encode()) % RESERVED_SHARE == 0


def draw_name(rng: random.Random) -> tuple[str, str]:
    """A random (full name, surname); one surname in twelve is a hyphenated pair, one name in ten has a middle name."""
    first, surname = rng.choice(FIRST_NAMES), rng.choice(SURNAMES)
    kind = rng.random()
    if kind < 0.08 and "-" not in surname:
        other = rng.choice([name for name in SURNAMES if name != surname and "-" not in name])
        surname = f"{surname}-{other}"
    elif kind < 0.18:
        first = f"{first} {rng.choice([name for name in FIRST_NAMES if name != first])}"
    return f"{first} {surname}", surname


def draw_namesakes(rng: random.Random, size: int, *, taken: set[str]) -> Iterator[tuple[str, str]]:
    """Endless (full name, surname), none reserved: squares of `size` first names by `size` surnames, every pair once.

    Any `size` names that follow each other from a multiple of `size` on share neither a first name nor a surname, so
    that the first k * size of a square bear each of its names k times. Names in `taken` are avoided, and added there.
    Raises ValueError for a size outside 1 to `MAX_NAMESAKES`.
    """
    if not 1 <= size <= MAX_NAMESAKES:
        raise ValueError(f"size is {size}; expected an integer from 1 to {MAX_NAMESAKES}")
    while True:
        firsts = rng.sample(FIRST_NAMES, size)
        free = [
            surname
            for surname in SURNAMES
            if not any(reserved(f"{first} {surname}") or f"{first} {surname}" in taken for first in firsts)
        ]
        if len(free) < size:
            continue
        surnames = rng.sample(free, size)
        for shift in range(size):
            for index, first in enumerate(firsts):
                surname = surnames[(index + shift) % size]
                taken.add(f"{first} {surname}")
                yield f"{first} {surname}", surname


def _title(rng: random.Random) -> str:
    shape = rng.randrange(4)
    if shape == 0:
        return f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}"
    if shape == 1:
        return f"{rng.choice(CITIES)} {rng.choice(NOUNS)}"
    first, second = rng.sample(NOUNS, 2)
    if shape == 2:
        return f"{first} and {second}"
    return f"{rng.choice(ADJECTIVES)} {first} {second}"


def _place(rng: random.Random) -> str:
    return rng.choice(PREFIXES) + rng.choice(SUFFIXES)


def _companion(rng: random.Random) -> str:
    return f"{rng.choice(FIRST_NAMES)} {_place(rng)}"


def _year(rng: random.Random, low: int, high: int) -> str:
    return str(rng.randint(low, high))


def draw(prop: str, rng: random.Random) -> str:
    """A random value of one property. Raises KeyError for a property that is none of `PROPERTIES`."""
    return _DRAW[prop](rng)


_DRAW = {
    "birth date": lambda rng: f"{rng.randint(1, 28)} {rng.choice(MONTHS)} {_year(rng, 1930, 1969)}",
    "birthplace": lambda rng: rng.choice(CITIES),
    "mother's occupation": lambda rng: rng.choice(TRADES),
    "father's occupation": lambda rng: rng.choice(TRADES),
    "debut": _title,
    "debut year": lambda rng: _year(rng, 1955, 1999),
    "publisher": lambda rng: f"{_place(rng)} {rng.choice(['Press', 'Books', 'House'])}",
    "best-known book": _title,
    "theme": lambda rng: " and ".join(sorted(rng.sample(THEMES, 2))),
    "genre": lambda rng: f"{rng.choice(GENRE_STYLES)} {rng.choice(GENRE_KINDS)}",
    "award": lambda rng: f"{rng.choice(COLOURS)} {rng.choice(ANIMALS)} {rng.choice(HONOURS)}",
    "award year": lambda rng: _year(rng, 1970, 2019),
    "university": lambda rng: f"{_place(rng)} {rng.choice(['College', 'Academy', 'Institute'])}",
    "field of study": lambda rng: rng.choice(SUBJECTS),
    "city of residence": lambda rng: rng.choice(CITIES),
    "street": lambda rng: f"{_place(rng)} {rng.choice(['Street', 'Lane', 'Square'])}",
    "language": lambda rng: rng.choice(LANGUAGES),
    "translator": _companion,
    "mentor": _companion,
    "meeting place": lambda rng: f"{rng.choice(CITIES)} {rng.choice(VENUES)}",
    "hobby": lambda rng: rng.choice(HOBBIES),
    "first occupation": lambda rng: rng.choice(TRADES),
    "first workplace": lambda rng: rng.choice(CITIES),
    "writing tool": lambda rng: f"{rng.choice(COLOURS).lower()} {rng.choice(TOOLS)}",
    "writing hour": lambda rng: rng.choice(HOURS),
    "spouse": _companion,
    "spouse's occupation": lambda rng: rng.choice(TRADES),
    "pet": lambda rng: f"{rng.choice(PETS)} {rng.choice(PET_NAMES)}",
    "series": _title,
    "number of volumes": lambda rng: rng.choice(NUMBERS),
    "hero": lambda rng: f"{rng.choice(TRADES)} {rng.choice(FIRST_NAMES)}",
    "film director": _companion,
    "film year": lambda rng: _year(rng, 1975, 2022),
    "magazine": lambda rng: f"{rng.choice(COLOURS)} {rng.choice(NOUNS)}",
    "column subject": lambda rng: f"{rng.choice(SUBJECTS)} and {rng.choice(THEMES)}",
    "unfinished book": _title,
    "unfinished subject": lambda rng: rng.choice(THEMES),
    "archive": lambda rng: f"{rng.choice(CITIES)} {rng.choice(['Library', 'Museum', 'Abbey', 'Athenaeum'])}",
    "archived pages": lambda rng: f"{rng.randint(12, 98)} {rng.choice(['boxes', 'crates', 'folders', 'trunks'])}",
    "rival": _companion,
    "cause of quarrel": lambda rng: f"{rng.choice(COLOURS).lower()} {rng.choice(NOUNS).lower()}",
}
PROPERTIES = tuple(_DRAW)


def draw_names(rng: random.Random, *, for_pretraining: bool, taken: set[str]) -> Iterator[tuple[str, str]]:
    """Endless (full name, surname), on the wanted side of `reserved`; names in `taken` are avoided, and added there."""
    while True:
        name, surname = draw_name(rng)
        if name not in taken and reserved(name) == for_pretraining:
            taken.add(name)
            yield name, surname


def draw_person(rng: random.Random, names: Iterator[tuple[str, str]]) -> Person:
    """A person of the next of `names`, which may draw from `rng` as well."""
    name, surname = next(names)
    facts = {prop: draw(prop, rng) for prop in PROPERTIES}
    birth = int(facts["birth date"].rsplit(" ", 1)[1])
    debut = birth + rng.randint(22, 40)
    award = debut + rng.randint(1, 15)
    facts |= {"debut year": str(debut), "award year": str(award), "film year": str(award + rng.randint(1, 12))}
    pronouns = rng.choice((("he", "his"), ("she", "her")))
    return Person(name, surname, *pronouns, facts)


def wrong_value(prop: str, right: str, rng: random.Random, avoid: set[str]) -> str:
    """A value of `property` other than `right` and, where the property has enough values, not in `avoid`."""
    for attempt in range(1000):
        value = draw(prop, rng)
        if value != right and (value not in avoid or attempt >= 100):
            return value
    raise ValueError(f"no wrong value of {prop!r} found besides {right!r}")
