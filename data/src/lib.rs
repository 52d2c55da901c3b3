//! Converts a user's files to tokens.
//!
//! [`files`] opens the paths that the user named and returns their documents one by one: `listing` selects the files of
//! a directory, `format` determines the format of each, `input` decompresses them, and [`flaws`] counts invalid text.
//! [`shuffle`] changes the order of the documents; [`split`] divides them into training and validation; [`ahead`]
//! encodes them on several threads; [`shards`] stores the tokens in files that are read at any offset; [`snapshot`]
//! recognises the files that a run began with; [`stream`] turns documents into one stream of tokens with one cursor;
//! [`sequences`] is the order in which a run reads the shards or the stream; [`loader`] makes batches of sequences on a
//! thread of its own; [`validation`] stores a bounded set of documents for scoring, [`choice`] chooses them, [`whole`]
//! reads all documents of a validation source, [`overlap`] finds the scored text that the training side contains too;
//! [`coverage`] measures how many words the tokenizer does not know; [`tales`] is the built-in corpus; [`ngram`]
//! computes the loss of n-gram counts.

pub mod ahead;
pub mod choice;
pub mod conversation;
pub mod corpus;
pub mod coverage;
pub mod dedup;
pub mod error;
pub mod files;
pub mod flaws;
pub mod found;
pub mod lengths;
pub mod loader;
pub mod ngram;
pub mod overlap;
pub mod pages;
pub mod sequences;
pub mod shards;
pub mod shuffle;
pub mod snapshot;
pub mod source;
pub mod split;
pub mod stream;
pub mod tales;
pub mod token_file;
pub mod tokenizer;
pub mod validation;
pub mod whole;

mod csv;
mod encode;
mod format;
mod input;
mod json;
mod jsonl;
mod listing;
mod object;
mod parquet;
pub mod portrait;
mod text;
mod unpack;

#[cfg(test)]
mod fixtures;
