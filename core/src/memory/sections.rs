//! The sections of a table of parameters that ranks share: what one layer has lies together.

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    /// What lies before the layers.
    Before,
    /// A layer.
    Layer(u32),
    /// What lies behind them.
    Behind,
}

impl Section {
    /// 0 before the layers, 1 of them, 2 behind them.
    pub const fn kind(self) -> usize {
        match self {
            Section::Before => 0,
            Section::Layer(_) => 1,
            Section::Behind => 2,
        }
    }
}

/// How long each section is, in rows or in pieces of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sections {
    /// Before the layers.
    pub before: u32,
    /// Each layer.
    pub layer: u32,
    /// How many layers there are.
    pub layers: u32,
    /// Behind the layers.
    pub behind: u32,
}

impl Sections {
    /// Every section of so many layers, in the order in which they lie.
    pub fn all(&self) -> impl DoubleEndedIterator<Item = Section> + use<> {
        let layers = (0..self.layers).map(Section::Layer);
        core::iter::once(Section::Before).chain(layers).chain([Section::Behind])
    }

    /// The same in the order in which a backward pass completes their gradients.
    pub fn as_formed(&self) -> impl Iterator<Item = Section> + use<> {
        self.all().rev()
    }

    /// The length of `section`.
    pub const fn len(&self, section: Section) -> u32 {
        match section {
            Section::Before => self.before,
            Section::Layer(_) => self.layer,
            Section::Behind => self.behind,
        }
    }

    /// How many sections are given away before `section` where each goes to another: layers are first.
    pub const fn turn(&self, section: Section) -> u32 {
        match section {
            Section::Layer(l) => l,
            Section::Before => self.layers,
            Section::Behind => self.layers + 1,
        }
    }

    /// Where `section` begins.
    pub const fn start(&self, section: Section) -> u64 {
        let (before, layer) = (self.before as u64, self.layer as u64);
        match section {
            Section::Before => 0,
            Section::Layer(l) => before + l as u64 * layer,
            Section::Behind => before + self.layers as u64 * layer,
        }
    }

    /// The length of all of them.
    pub const fn total(&self) -> u64 {
        self.start(Section::Behind) + self.behind as u64
    }

    /// The same layers, each section as long as `length` makes of its length.
    pub fn map(&self, length: impl Fn(u32) -> u32) -> Sections {
        let Sections { before, layer, layers, behind } = *self;
        Sections { before: length(before), layer: length(layer), layers, behind: length(behind) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_follow_each_other() {
        for (before, layer, layers, behind) in [(3u32, 2u32, 4u32, 1u32), (0, 5, 1, 2), (4, 1, 2, 0), (2, 0, 3, 2)] {
            let sections = Sections { before, layer, layers, behind };
            let mut next = 0;
            for section in sections.all() {
                assert_eq!(sections.start(section), next);
                next += u64::from(sections.len(section));
            }
            assert_eq!((next, sections.all().count() as u32), (sections.total(), layers + 2));
        }
        let long = Sections { before: u32::MAX, layer: u32::MAX, layers: u32::MAX, behind: 1 };
        assert_eq!(long.total(), (1 << 32) * u64::from(u32::MAX) + 1);
    }
}
