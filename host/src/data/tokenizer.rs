//! What a tokenizer can do, whatever its kind.

/// Text to token ids and back. Shared by the reader thread and the commands.
pub trait Tokenizer: Send + Sync {
    /// Number of ids, special ones included; every id is below it.
    fn vocab_size(&self) -> u32;

    /// The id that begins a document, where the tokenizer has one.
    fn bos(&self) -> Option<u32>;

    /// The id that ends a document, where the tokenizer has one.
    fn eos(&self) -> Option<u32>;

    /// Appends the ids of `text` to `ids`, without adding document marks.
    fn encode(&self, text: &str, ids: &mut Vec<u32>);

    /// The text of `ids`; special ids give nothing, invalid UTF-8 is replaced.
    fn decode(&self, ids: &[u32]) -> String;
}
