//! `host logits`.

use capful_core::data::IGNORE;
use serde_json::json;

use super::output::say;
use super::trained::TrainedFlags;
use super::{Failure, request, work};
use crate::plan::Sections;
use crate::run::Rows;
use crate::run::directory::Trained;
use capful_core::model::{MicroBatch, Products};

/// Flags of `host logits`.
#[derive(Debug, clap::Args)]
pub struct Logits {
    #[command(flatten)]
    trained: TrainedFlags,
    /// The token ids, separated by commas
    #[arg(long, value_name = "1,2,3", value_delimiter = ',', required = true)]
    ids: Vec<u32>,
    /// JSON on standard output
    #[arg(long)]
    json: bool,
}

impl Logits {
    pub(super) fn run(mut self) -> Result<(), Failure> {
        self.trained.settle()?;
        let config = self.trained.config()?;
        let (vocab_size, context, count) = (config.vocab_size(), config.context(), self.ids.len() as u32);
        if let Some(id) = self.ids.iter().find(|&&id| id >= vocab_size) {
            return Err(request(format!("id {id} is outside the vocabulary of {vocab_size}")));
        }
        if count > context {
            return Err(request(format!("{count} ids are more than the context of {context}")));
        }
        let evaluation = MicroBatch { batch: 1, seq_len: count, products: Products::Wide, ..config.micro_batch() };
        let sections = Sections { evaluation: Some(evaluation), ..Sections::none(&config) };
        let Trained { mut session, .. } = self.trained.load(&config, &sections)?;
        let (targets, offsets): (Vec<u32>, Vec<u32>) = (vec![IGNORE; self.ids.len()], (0..count).collect());
        session.evaluate(Rows { ids: &self.ids, targets: &targets, offsets: &offsets }).map_err(work)?;
        let mut rows: Vec<Vec<f32>> = Vec::with_capacity(self.ids.len());
        session.logits(count, &mut |row| rows.push(row.to_vec())).map_err(work)?;
        if self.json {
            say!("{}", json!({ "ids": self.ids, "logits": rows }))?;
            return Ok(());
        }
        for (id, row) in self.ids.iter().zip(&rows) {
            let mut order: Vec<usize> = (0..row.len()).collect();
            order.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
            let best: Vec<_> = order.iter().take(5).map(|&i| format!("{i}: {:.4}", row[i])).collect();
            say!("after {id:>6}: {}", best.join("  "))?;
        }
        Ok(())
    }
}
