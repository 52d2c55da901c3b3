//! Known cards, so that a run can be planned for one that is not in this machine.

/// A card's memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Card {
    /// The name that `--gpu` takes.
    pub name: &'static str,
    /// Bytes a program can use.
    pub usable: u64,
    /// Bytes of context and kernels outside the arena.
    pub context: u64,
    /// Whether the figures were measured on such a card or taken from its data sheet less a reserve.
    pub measured: bool,
}

const MIB: u64 = 1 << 20;

/// The table.
pub const CARDS: [Card; 5] = [
    Card { name: "gtx1650", usable: 3717 * MIB, context: 256 * MIB, measured: false },
    Card { name: "rtx4090", usable: 24_080 * MIB, context: 420 * MIB, measured: false },
    Card { name: "a100-80", usable: 80_500 * MIB, context: 450 * MIB, measured: false },
    Card { name: "h100", usable: 80_500 * MIB, context: 520 * MIB, measured: false },
    Card { name: "h200", usable: 142_300 * MIB, context: 520 * MIB, measured: false },
];

impl Card {
    /// The card called `name`.
    pub fn find(name: &str) -> Option<&'static Card> {
        CARDS.iter().find(|card| card.name == name)
    }
}
