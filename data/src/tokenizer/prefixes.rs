//! Finds the longest token at the beginning of a text, with a trie.
//!
//! The children of a node are adjacent, and a first child's children follow soon after it: a long token lies in few
//! cache lines. The first two bytes are one step.

/// No node, or no token.
const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Node {
    /// The token that ends here, or [`NONE`].
    token: u32,
    first_child: u32,
    children: u16,
    /// The last byte of the first child: most nodes have only one child.
    first_label: u8,
}

/// A trie over the bytes of tokens.
#[derive(Debug, Clone)]
pub(super) struct Prefixes {
    nodes: Vec<Node>,
    /// The last byte of each node. `[nodes]`
    labels: Vec<u8>,
    /// The node for two bytes, or [`NONE`]. `[256 × 256]`
    pairs: Vec<u32>,
}

impl Prefixes {
    /// The trie of `tokens`, numbered in their order. The first 256 are the single bytes; no two tokens are equal.
    pub(super) fn new(tokens: &[&[u8]]) -> Self {
        let mut order: Vec<u32> = (0..tokens.len() as u32).collect();
        order.sort_unstable_by_key(|&token| tokens[token as usize]);
        let empty = Node { token: NONE, first_child: 0, children: 0, first_label: 0 };
        let (mut nodes, mut labels) = (vec![empty], vec![0]);
        // Nodes, each with its tokens `order[low..high]`; these agree in as many bytes as the node is deep.
        let mut open = vec![(0, 0, order.len(), 0)];
        while let Some((at, mut low, high, depth)) = open.pop() {
            if low < high && tokens[order[low] as usize].len() == depth {
                nodes[at].token = order[low];
                low += 1;
            }
            let first = open.len();
            while low < high {
                let label = tokens[order[low] as usize][depth];
                let same = order[low..high].partition_point(|&token| tokens[token as usize][depth] == label);
                open.push((labels.len(), low, low + same, depth + 1));
                labels.push(label);
                low += same;
            }
            let node = &mut nodes[at];
            if let Some(&(child, ..)) = open.get(first) {
                (node.first_child, node.first_label) = (child as u32, labels[child]);
                node.children = (open.len() - first) as u16;
            }
            nodes.resize(labels.len(), empty);
            open[first..].reverse();
        }
        let mut trie = Self { nodes, labels, pairs: vec![NONE; 1 << 16] };
        for first in 0..=255 {
            for second in 0..=255 {
                let node = trie.child(0, first).and_then(|node| trie.child(node, second));
                trie.pairs[usize::from(first) << 8 | usize::from(second)] = node.unwrap_or(NONE);
            }
        }
        trie
    }

    fn child(&self, node: u32, byte: u8) -> Option<u32> {
        let Node { first_child, children, first_label, .. } = self.nodes[node as usize];
        if children > 0 && first_label == byte {
            return Some(first_child);
        }
        let labels = &self.labels[first_child as usize..][..usize::from(children)];
        labels.iter().position(|&label| label == byte).map(|i| first_child + i as u32)
    }

    /// The longest token at the beginning of `text`, which must not be empty.
    pub(super) fn longest(&self, text: &[u8]) -> u32 {
        let mut best = u32::from(text[0]);
        let [first, second, rest @ ..] = text else { return best };
        let mut node = self.pairs[usize::from(*first) << 8 | usize::from(*second)];
        if node == NONE {
            return best;
        }
        let mut rest = rest.iter();
        loop {
            let token = self.nodes[node as usize].token;
            if token != NONE {
                best = token;
            }
            match rest.next().and_then(|&byte| self.child(node, byte)) {
                Some(next) => node = next,
                None => return best,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_the_longest(words in prop::collection::hash_set("[abc]{2,6}", 0..40), text in "[abc]{1,9}") {
            let bytes: Vec<[u8; 1]> = (0..=255).map(|b| [b]).collect();
            let tokens: Vec<&[u8]> =
                bytes.iter().map(|b| b.as_slice()).chain(words.iter().map(|word| word.as_bytes())).collect();
            let found = Prefixes::new(&tokens).longest(text.as_bytes());
            let starts = (0..tokens.len()).filter(|&token| text.as_bytes().starts_with(tokens[token]));
            prop_assert_eq!(Some(found as usize), starts.max_by_key(|&token| tokens[token].len()));
        }
    }
}
