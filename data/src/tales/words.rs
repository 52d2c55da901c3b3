//! The words a tale chooses from, one list for each kind of word.
//!
//! The choice from every list is uniform. A word that may follow "a" begins with a consonant.

/// Names of girls and of boys: equally many, so that a name costs the same for either.
pub(super) const NAMES: [&[&str]; 2] = [
    &[
        "anna", "bella", "clara", "dora", "emma", "fiona", "greta", "hanna", "ida", "julia", "lily", "mia", "nora",
        "rosa", "sara", "tilda",
    ],
    &[
        "adam", "ben", "carl", "david", "emil", "felix", "hugo", "jack", "leo", "max", "noah", "oscar", "paul",
        "simon", "tom", "victor",
    ],
];

/// The hero's kind; in the order of [`NAMES`] and of [`PRONOUNS`].
pub(super) const KINDS: &[&str] = &["girl", "boy"];

/// Pronouns by case: subject, possessive, object; each for a girl and for a boy.
pub(super) const PRONOUNS: [(&str, [&str; 2]); 3] =
    [("he", ["she", "he"]), ("his", ["her", "his"]), ("him", ["her", "him"])];

const LOOKS: &[&str] = &[
    "pretty", "tiny", "big", "small", "lovely", "strange", "dusty", "splendid", "magic", "simple", "fine", "dark",
    "bright", "clean", "huge", "grand", "secret", "muddy", "gloomy", "charming",
];

/// The lists, each with its name in the sentences. Words that must not be confused have separate lists: a hero's trait
/// is never an animal's temper, a feeling never a mood.
pub(super) const LISTS: &[(&str, &[&str])] = &[
    (
        "trait",
        &[
            "brave", "clever", "gentle", "curious", "shy", "cheerful", "lazy", "proud", "quiet", "merry", "patient",
            "polite", "playful", "silly", "careful", "stubborn",
        ],
    ),
    (
        "temper",
        &[
            "sleepy", "hungry", "friendly", "noisy", "grumpy", "lonely", "thirsty", "tired", "nervous", "young",
            "wild", "tame", "busy", "bored", "funny", "fat", "fluffy", "speedy", "dreamy", "bold",
        ],
    ),
    (
        "feeling",
        &[
            "happy", "glad", "calm", "strong", "free", "wise", "lucky", "hopeful", "rich", "grateful", "pleased",
            "excited", "welcome",
        ],
    ),
    (
        "mood",
        &[
            "warm", "safe", "content", "cosy", "rested", "joyful", "relaxed", "cheery", "amused", "thankful",
            "peaceful", "jolly", "giddy",
        ],
    ),
    ("look", LOOKS),
    (
        "colour",
        &["red", "blue", "green", "yellow", "white", "black", "brown", "silver", "golden", "purple", "pink", "grey"],
    ),
    (
        "thing",
        &[
            "ball", "book", "key", "doll", "drum", "kite", "bell", "cup", "ring", "hat", "coin", "whistle", "lamp",
            "ribbon", "spoon", "scarf", "flute", "mirror", "puppet", "button", "candle", "feather", "marble",
            "necklace", "blanket", "compass", "brush", "map", "mask", "purse", "rope", "teapot",
        ],
    ),
    ("preposition", &["under", "behind", "beside", "on"]),
    (
        "place",
        &[
            "basket", "box", "barrel", "chest", "cupboard", "trunk", "bucket", "cradle", "stove", "sofa", "table",
            "bed", "chair", "bench", "wardrobe", "piano", "clock", "pillow", "desk", "bookcase",
        ],
    ),
    (
        "spot",
        &[
            "forest", "meadow", "river", "market", "beach", "lake", "mountain", "castle", "park", "school", "mill",
            "bridge", "harbour", "farm", "orchard", "church", "cave", "fountain", "garden", "bakery",
        ],
    ),
    (
        "animal",
        &[
            "fox", "rabbit", "bear", "duck", "dog", "cat", "horse", "mouse", "goat", "hen", "frog", "squirrel",
            "donkey", "goose", "hedgehog", "turtle", "badger", "lamb", "parrot", "pig",
        ],
    ),
    ("number", &["two", "three", "four", "five", "six", "seven", "eight", "nine"]),
    (
        "treats",
        &[
            "apples",
            "nuts",
            "berries",
            "cherries",
            "plums",
            "carrots",
            "pears",
            "mushrooms",
            "cakes",
            "cookies",
            "pancakes",
            "grapes",
            "peaches",
            "turnips",
            "buns",
            "pies",
        ],
    ),
    ("taste", &["sweet", "ripe", "fresh", "juicy", "sour", "tasty", "soft", "cold"]),
    ("weekday", &["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]),
    ("relative", &["mother", "father", "sister", "brother", "uncle", "aunt", "grandmother", "grandfather"]),
    ("hid", &["put", "hid", "left", "laid", "placed", "dropped"]),
    (
        "adverb",
        &[
            "quickly", "slowly", "quietly", "gladly", "softly", "boldly", "secretly", "calmly", "proudly", "bravely",
            "suddenly", "finally", "soon", "merrily", "kindly", "gently", "happily", "neatly",
        ],
    ),
    (
        "moved",
        &[
            "walked", "ran", "skipped", "hurried", "wandered", "marched", "raced", "strolled", "rushed", "hopped",
            "crept", "climbed", "tiptoed", "galloped", "sailed", "rode",
        ],
    ),
    (
        "doing",
        &[
            "sleeping", "dancing", "singing", "fishing", "digging", "reading", "cooking", "painting", "laughing",
            "dreaming",
        ],
    ),
    (
        "played",
        &[
            "played", "danced", "sang", "laughed", "jumped", "swam", "joked", "whistled", "painted", "cheered",
            "smiled", "giggled",
        ],
    ),
    ("creature", &["dragon", "giant", "king", "queen", "witch", "pirate", "wizard", "princess"]),
];
