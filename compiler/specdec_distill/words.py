"""Word lists for the training prompts, made for this project. Data only.

Invariant: the evaluation prompts (models/strata) were written apart from these lists.
"""

from collections.abc import Sequence

TOPICS = """volcanoes; honey bees; the water cycle; medieval castles; jazz music; solar panels; chess openings; coral reefs; bread baking;
black holes; the printing press; urban gardening; public libraries; steam engines; whales; the Silk Road; migraine; electric cars; origami;
the immune system; tide pools; beekeeping; photography; inflation; the stock market; glaciers; penguins; home insulation; bicycle repair;
the French Revolution; recycling; meditation; sourdough; marathon training; insects; cloud computing; encryption; databases; compilers;
board games; opera; pottery; weather forecasting; earthquakes; submarines; satellites; the human heart; sleep; vitamins; vaccines; antibiotics;
ancient Egypt; the Roman Empire; Vikings; the moon landing; robots; neural networks; search engines; email etiquette; job interviews; budgets;
rent contracts; insurance; compound interest; taxes; time management; remote work; public speaking; note taking; learning languages; spelling;
poetry; science fiction; fairy tales; detective novels; documentary films; street art; museums; architecture; bridges; tunnels; railways;
airports; harbours; lighthouses; sailing; rowing; swimming; climbing; hiking; camping; knots; maps; compasses; stars; planets; comets; gravity;
magnetism; electricity; batteries; wind turbines; dams; rivers; lakes; deserts; rainforests; savannas; mountains; islands; caves; fossils;
dinosaurs; birds of prey; owls; foxes; wolves; horses; cats; dogs; goldfish; aquariums; tomatoes; potatoes; apples; olives; coffee; tea;
chocolate; cheese; rice; noodles; soups; salads; spices; knives; stoves; kitchens; furniture; paint; wood carving; knitting; sewing; shoes;
jewellery; clocks; calendars; money; banks; markets; shops; advertising; newspapers; radio; television; podcasts; telephones; cameras;
printers; keyboards; spreadsheets; passwords; backups; computer viruses; operating systems; open source software; unit tests; version control;
web pages; colours; typography; logos; statistics; probability; fractions; geometry; algebra; prime numbers; logic puzzles; riddles; jokes;
manners; friendship; families; weddings; birthdays; holidays; school; universities; homework; teachers; exams; children; ageing; health;
exercise; stretching; yoga; diets; allergies; headaches; first aid; hospitals; nurses; dentists; firefighters; police; courts; laws; elections;
parliaments; constitutions; cities; villages; traffic; parking; buses; trams; taxis; hotels; travel; passports; luggage; beaches; snow;
skiing; football; tennis; basketball; cricket; the Olympics; guitars; pianos; violins; drums; choirs; dance; theatre; circus; magic tricks""".replace(
    "\n", " "
).split("; ")

NAMES = [
    "Maria",
    "Tom",
    "Aisha",
    "Jonas",
    "Priya",
    "Luca",
    "Elena",
    "Omar",
    "Ingrid",
    "Pablo",
    "Yuki",
    "Grace",
    "Daniel",
    "Fatima",
    "Henrik",
    "Olga",
    "Samuel",
    "Leila",
    "Marco",
    "Nina",
    "Peter",
    "Hana",
    "Victor",
    "Rosa",
    "Ahmed",
    "Clara",
    "Ivan",
    "Sofia",
    "Kofi",
    "Amara",
    "Lars",
    "Mina",
    "Diego",
    "Ruth",
    "Felix",
    "Zoe",
    "Arjun",
    "Eva",
    "Bruno",
    "Lucia",
    "Noah",
    "Emma",
    "Karim",
    "Julia",
    "Stefan",
    "Anita",
    "Robert",
    "Chen",
    "Dana",
    "Erik",
    "Paula",
    "Simon",
    "Teresa",
    "Walter",
    "Irene",
    "Hugo",
    "Vera",
    "Max",
    "Alice",
    "Boris",
    "Carmen",
    "Frank",
    "Gita",
    "Ivo",
    "Judith",
    "Klaus",
    "Laura",
]

SURNAMES = [
    "Miller",
    "Rossi",
    "Okafor",
    "Schmidt",
    "Tanaka",
    "Garcia",
    "Novak",
    "Silva",
    "Patel",
    "Jensen",
    "Kowalski",
    "Dubois",
    "Haddad",
    "Murphy",
    "Berg",
    "Costa",
    "Weber",
    "Nguyen",
    "Brown",
    "Laurent",
    "Fischer",
    "Moreno",
    "Olsen",
    "Horvat",
    "Ali",
    "Kim",
    "Santos",
    "Wagner",
    "Evans",
    "Romano",
    "Lind",
    "Petrov",
    "Mensah",
    "Cohen",
]

CITIES = [
    "Porto",
    "Oslo",
    "Lagos",
    "Kyoto",
    "Lima",
    "Geneva",
    "Dublin",
    "Cairo",
    "Austin",
    "Prague",
    "Mumbai",
    "Hanoi",
    "Seville",
    "Bergen",
    "Nairobi",
    "Montreal",
    "Glasgow",
    "Krakow",
    "Athens",
    "Zagreb",
    "Turin",
    "Leipzig",
    "Gdansk",
    "Ghent",
    "Lyon",
    "Bilbao",
    "Tallinn",
    "Riga",
    "Vilnius",
    "Sofia",
    "Bristol",
    "Boston",
    "Denver",
    "Toronto",
    "Perth",
    "Quito",
    "Bogota",
    "Accra",
    "Tunis",
    "Rabat",
    "Ankara",
    "Tbilisi",
    "Osaka",
    "Busan",
    "Manila",
    "Jakarta",
    "Delhi",
    "Pune",
]

JOBS = """teacher; nurse; carpenter; baker; software engineer; farmer; pilot; librarian; electrician; dentist; journalist; chemist; gardener;
plumber; accountant; translator; waiter; lawyer; photographer; architect; bus driver; scientist; musician; tailor; fisherman; mechanic;
receptionist; shop owner; student; museum guide""".replace("\n", " ").split("; ")

THINGS = """umbrella; backpack; lamp; notebook; bicycle; kettle; jacket; printer; phone; blanket; chair; table; mirror; camera; watch; ladder;
hammer; toaster; suitcase; pillow; radio; vase; basket; helmet; drill; teapot; carpet; scarf; wallet; keyboard; monitor; speaker; tent; kite;
candle; broom; bucket; shelf; clock; guitar""".replace("\n", " ").split("; ")

PLACES = """the library; the town hall; the harbour; the old mill; the train station; the school; the market; the museum; the park; the hospital;
the office; the warehouse; the bakery; the café on the corner; the sports hall; the community centre; the theatre; the garden; the airport;
the workshop""".replace("\n", " ").split("; ")

ADJECTIVES = [
    "small",
    "old",
    "bright",
    "quiet",
    "broken",
    "cheap",
    "heavy",
    "modern",
    "wooden",
    "green",
    "blue",
    "red",
    "simple",
    "strange",
    "useful",
    "new",
    "famous",
    "warm",
    "cold",
    "early",
    "late",
    "gentle",
    "loud",
    "soft",
    "round",
    "sharp",
    "empty",
    "full",
    "clean",
    "dusty",
]

EVENTS = """meeting; concert; workshop; lecture; football match; book reading; fire drill; photo exhibition; staff training; board meeting;
science fair; cooking class; chess tournament; flea market; guided tour; film night; parents' evening; charity run; job fair; open day""".replace(
    "\n", " "
).split("; ")

DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
REASONS = """heavy rain; a power cut; a broken pipe; a strike; illness; a traffic jam; a double booking; a missing part; roadworks; a late
delivery; a software update; strong wind; a holiday; a fire alarm; low demand""".replace("\n", " ").split(
    "; "
)
PROBLEMS = """arrived two days late; does not switch on; has a scratch on the side; makes a loud noise; was delivered to the wrong address; is the
wrong colour; stopped working after a week; came without the manual; is missing a screw; smells of smoke""".replace(
    "\n", " "
).split("; ")
TONES = """formal; friendly; polite; shorter; simpler; more enthusiastic; neutral; professional; apologetic; cheerful; clear and direct; more
modest""".replace("\n", " ").split("; ")
FORMS = """short story; poem; haiku; song; letter; dialogue; speech; diary entry; blog post; news report; product description; tweet; limerick; fable;
postcard; recipe; tutorial; essay; riddle; eulogy; press release; bedtime story""".replace("\n", " ").split(
    "; "
)
LANGUAGES = [
    "Python",
    "JavaScript",
    "C",
    "Java",
    "SQL",
    "Bash",
    "Rust",
    "Go",
    "TypeScript",
    "HTML",
    "CSS",
    "Ruby",
]
TASKS = """reverses a string; counts the vowels in a text; sorts a list of numbers; finds the largest element; checks whether a number is prime;
computes the factorial of n; merges two sorted lists; removes duplicates from a list; reads a file line by line; converts Celsius to
Fahrenheit; counts words in a text; checks whether a string is a palindrome; finds the greatest common divisor; computes the mean and the
median; parses a date; flattens a nested list; generates a random password; searches a list by bisection; transposes a matrix; counts how
often each word occurs; validates an email address; sums the even numbers; prints a multiplication table; implements a stack; implements a
queue; removes spaces from a text; joins two tables; groups rows by month; computes the distance between two points; rolls a die""".replace(
    "\n", " "
).split("; ")

# language: (its words for a request about a topic, topics in it)
TONGUES: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "German": (
        [
            "Erkläre mir kurz {}.",
            "Was ist das Besondere an {}?",
            "Schreibe drei Sätze über {}.",
            "Nenne fünf Tatsachen über {}.",
            "Warum mögen Menschen {}?",
        ],
        [
            "den Rhein",
            "Schokolade",
            "das Wetter",
            "Katzen",
            "Fahrräder",
            "den Mond",
            "Bücher",
            "Vulkane",
            "Musik",
            "Brot",
            "Fußball",
            "den Herbst",
            "Züge",
            "das Meer",
            "Computer",
        ],
    ),
    "Spanish": (
        [
            "Explica brevemente {}.",
            "Escribe tres frases sobre {}.",
            "¿Qué sabes de {}?",
            "Dame cinco datos sobre {}.",
            "¿Por qué es importante {}?",
        ],
        [
            "el sol",
            "la música",
            "el chocolate",
            "los gatos",
            "el fútbol",
            "la luna",
            "los libros",
            "la lluvia",
            "el café",
            "la familia",
            "los trenes",
            "el mar",
            "las montañas",
            "la escuela",
            "el pan",
        ],
    ),
    "French": (
        [
            "Explique brièvement {}.",
            "Écris trois phrases sur {}.",
            "Que sais-tu sur {} ?",
            "Donne cinq faits sur {}.",
            "Pourquoi aime-t-on {} ?",
        ],
        [
            "le pain",
            "la musique",
            "le chocolat",
            "les chats",
            "le football",
            "la lune",
            "les livres",
            "la pluie",
            "le café",
            "la famille",
            "les trains",
            "la mer",
            "les montagnes",
            "l'école",
            "le vin",
        ],
    ),
    "Italian": (
        [
            "Spiega in breve {}.",
            "Scrivi tre frasi su {}.",
            "Che cosa sai di {}?",
            "Dammi cinque fatti su {}.",
            "Perché è importante {}?",
        ],
        [
            "il sole",
            "la musica",
            "il cioccolato",
            "i gatti",
            "il calcio",
            "la luna",
            "i libri",
            "la pioggia",
            "il caffè",
            "la famiglia",
            "i treni",
            "il mare",
            "le montagne",
            "la scuola",
            "il pane",
        ],
    ),
    "Portuguese": (
        [
            "Explique brevemente {}.",
            "Escreva três frases sobre {}.",
            "O que você sabe sobre {}?",
            "Dê cinco fatos sobre {}.",
            "Por que é importante {}?",
        ],
        [
            "o sol",
            "a música",
            "o chocolate",
            "os gatos",
            "o futebol",
            "a lua",
            "os livros",
            "a chuva",
            "o café",
            "a família",
            "os trens",
            "o mar",
            "as montanhas",
            "a escola",
            "o pão",
        ],
    ),
    "Dutch": (
        [
            "Leg kort uit wat {} is.",
            "Schrijf drie zinnen over {}.",
            "Wat weet je over {}?",
            "Noem vijf feiten over {}.",
        ],
        [
            "de zee",
            "muziek",
            "chocolade",
            "katten",
            "voetbal",
            "de maan",
            "boeken",
            "regen",
            "koffie",
            "familie",
            "treinen",
            "bergen",
            "school",
            "brood",
            "fietsen",
        ],
    ),
    "Polish": (
        ["Wyjaśnij krótko, czym jest {}.", "Napisz trzy zdania na temat: {}.", "Co wiesz o tym: {}?"],
        [
            "słońce",
            "muzyka",
            "czekolada",
            "kot",
            "piłka nożna",
            "księżyc",
            "książka",
            "deszcz",
            "kawa",
            "rodzina",
            "pociąg",
            "morze",
            "szkoła",
            "chleb",
        ],
    ),
    "Japanese": (
        ["{}について三つの文を書いてください。", "{}とは何ですか。", "{}を簡単に説明してください。"],
        ["音楽", "海", "猫", "本", "電車", "雨", "学校", "山", "月", "料理"],
    ),
    "Chinese": (
        ["请写三句关于{}的话。", "{}是什么？", "请简单介绍一下{}。"],
        ["音乐", "大海", "猫", "书", "火车", "下雨", "学校", "山", "月亮", "做饭"],
    ),
    "Russian": (
        ["Напиши три предложения про {}.", "Объясни кратко, что такое {}.", "Что ты знаешь про {}?"],
        [
            "солнце",
            "музыку",
            "шоколад",
            "кошку",
            "футбол",
            "луну",
            "книгу",
            "дождь",
            "кофе",
            "семью",
            "поезд",
            "море",
            "школу",
            "хлеб",
        ],
    ),
}
