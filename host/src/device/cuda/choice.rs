//! What is saved of the choice between the library's algorithms.

use serde::{Deserialize, Serialize};

/// An algorithm chosen for one product, as it is saved.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// Case, [m, n, k], types of the operands and the result, what is added, alignment: `nt 64 128 32 bf16 f32 bias 256`.
    pub product: String,
    /// The algorithm's 64 bytes in hexadecimal digits; none where capful's own kernel runs.
    pub algorithm: Option<String>,
    /// What a product took; none where nothing was timed.
    pub milliseconds: Option<f32>,
    /// cublasLt's version, as it counts.
    pub library: u64,
    /// The card's name.
    pub card: String,
}
