//! From a user's files to tokens.
//!
//! [`files`] opens what the user named and gives its documents one by one: `listing` says which files of a directory,
//! `format` what each of them is, `input` unpacks it, and [`flaws`] counts what was no text. [`shuffle`] changes their
//! order; [`split`]
//! says which of them are for training; [`ahead`] encodes them on several threads; [`shards`] keeps the tokens in files
//! that are read at any place; [`snapshot`] knows the files again that a run began with; [`stream`] turns documents into one stream of tokens with one cursor; [`sequences`] is the
//! order in which a run reads either; [`loader`] makes batches of them on a thread of its own; [`validation`] keeps a
//! bounded set of documents for scoring, [`choice`] says which ones, [`whole`] gives all of them, [`overlap`] what of them
//! the training side has too; [`coverage`] says how many words the tokenizer does not know; [`tales`] is the built-in
//! corpus; [`ngram`] scores what plain counting reaches.

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
