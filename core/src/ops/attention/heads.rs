//! The order of queries, keys and values in a row of a fused projection.

use core::num::NonZeroU32;

/// The heads of an attention and their offsets in a row. All offsets and strides count elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
    /// Query heads.
    pub queries: u32,
    /// Key and value heads; each serves `queries / keys` query heads.
    pub keys: u32,
    /// Elements of a head.
    pub size: u32,
    query: (u32, u32),
    key: (u32, u32),
    value: (u32, u32),
}

impl Heads {
    /// GPT-NeoX: a row is [head, (query, key, value), size].
    pub const fn interleaved(heads: u32, size: u32) -> Heads {
        let stride = 3 * size;
        Heads { queries: heads, keys: heads, size, query: (0, stride), key: (size, stride), value: (2 * size, stride) }
    }

    /// Llama: a row is all query heads, then all key heads, then all value heads.
    pub const fn grouped(queries: u32, keys: u32, size: u32) -> Heads {
        Heads {
            queries,
            keys,
            size,
            query: (0, size),
            key: (queries * size, size),
            value: ((queries + keys) * size, size),
        }
    }

    /// Elements of a row: all queries, keys and values.
    pub const fn width(&self) -> u32 {
        (self.queries + 2 * self.keys) * self.size
    }

    /// Elements of a row of attention's output: all query heads.
    pub const fn out_width(&self) -> u32 {
        self.queries * self.size
    }

    /// First element of query head `head`.
    pub const fn query(&self, head: u32) -> usize {
        (self.query.0 + self.query.1 * head) as usize
    }

    /// First element of key head `head`.
    pub const fn key(&self, head: u32) -> usize {
        (self.key.0 + self.key.1 * head) as usize
    }

    /// Elements of all value heads of a row.
    pub const fn values(&self) -> u32 {
        self.keys * self.size
    }

    /// The index in a row of element `i` of all value heads.
    pub const fn value_element(&self, i: usize) -> usize {
        let size = self.size as usize;
        self.value((i / size) as u32) + i % size
    }

    /// The number of query and key heads together.
    pub const fn normed(&self) -> u32 {
        self.queries + self.keys
    }

    /// First element of head `head`, counting the query heads first, then the key heads.
    pub const fn query_or_key(&self, head: u32) -> usize {
        if head < self.queries { self.query(head) } else { self.key(head - self.queries) }
    }

    /// First element of value head `head`.
    pub const fn value(&self, head: u32) -> usize {
        (self.value.0 + self.value.1 * head) as usize
    }

    /// The key and value head that serves query head `head`.
    pub const fn key_of(&self, head: u32) -> u32 {
        head / (self.queries / self.keys)
    }

    /// The number of query heads that a key head serves; `None` where there are fewer query heads than key heads.
    pub const fn served(&self) -> Option<NonZeroU32> {
        match self.queries.checked_div(self.keys) {
            Some(served) => NonZeroU32::new(served),
            None => None,
        }
    }

    /// 1 / √size, the scale of the scores.
    pub fn scale(&self) -> f32 {
        1.0 / libm::sqrtf(self.size as f32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_of_a_row_belongs_to_one_head() {
        for heads in [Heads::interleaved(3, 4), Heads::grouped(6, 2, 4)] {
            let mut owners = [0u8; 64];
            for h in 0..heads.queries {
                owners[heads.query(h)..][..4].iter_mut().for_each(|n| *n += 1);
            }
            for h in 0..heads.keys {
                owners[heads.key(h)..][..4].iter_mut().for_each(|n| *n += 1);
                owners[heads.value(h)..][..4].iter_mut().for_each(|n| *n += 1);
            }
            let width = heads.width() as usize;
            assert!(owners[..width].iter().all(|&n| n == 1) && owners[width..].iter().all(|&n| n == 0));
        }
        assert_eq!(Heads::grouped(6, 2, 4).key_of(5), 1);
        assert_eq!(Heads::grouped(6, 2, 4).served(), NonZeroU32::new(3));
        assert_eq!([Heads::grouped(6, 0, 4), Heads::grouped(1, 2, 4)].map(|heads| heads.served()), [None; 2]);
    }
}
