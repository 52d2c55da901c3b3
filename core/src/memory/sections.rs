//! The sections of a table of parameters that ranks share: the parameters of one layer lie together.

/// A section of such a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    /// The parameters before the first layer.
    Before,
    /// The parameters of this layer.
    Layer(u32),
    /// The parameters after the last layer.
    Behind,
}

impl Section {
    /// The index of the section's kind: 0 before the layers, 1 for a layer, 2 after the layers.
    pub const fn kind(self) -> usize {
        match self {
            Section::Before => 0,
            Section::Layer(_) => 1,
            Section::Behind => 2,
        }
    }
}

/// The length of each section, in rows or in pieces of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sections {
    /// Length of the section before the layers.
    pub before: u32,
    /// Length of each layer's section.
    pub layer: u32,
    /// The number of layers.
    pub layers: u32,
    /// Length of the section after the layers.
    pub behind: u32,
}

impl Sections {
    /// All sections, in the order in which they lie in the table.
    pub fn all(&self) -> impl DoubleEndedIterator<Item = Section> + use<> {
        let layers = (0..self.layers).map(Section::Layer);
        core::iter::once(Section::Before).chain(layers).chain([Section::Behind])
    }

    /// All sections, in the order in which a backward pass completes their gradients.
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

    /// The number of sections assigned to ranks before `section` where each section goes to one rank: layers go first.
    pub const fn turn(&self, section: Section) -> u32 {
        match section {
            Section::Layer(l) => l,
            Section::Before => self.layers,
            Section::Behind => self.layers + 1,
        }
    }

    /// The offset at which `section` begins.
    pub const fn start(&self, section: Section) -> u64 {
        let (before, layer) = (self.before as u64, self.layer as u64);
        match section {
            Section::Before => 0,
            Section::Layer(l) => before + l as u64 * layer,
            Section::Behind => before + self.layers as u64 * layer,
        }
    }

    /// The length of all sections together.
    pub const fn total(&self) -> u64 {
        self.start(Section::Behind) + self.behind as u64
    }

    /// Sections of the same layers, with every length mapped by `length`.
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
