//! The list of all keys of a run's configuration; no other list exists.

use capful_core::integer::Integer;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use serde::{Deserialize, Serialize};

use super::Link;
use super::adapters::{LoraTargets, USUAL_ALPHA};
use super::choices::BaseType;
use super::key::{RunKey, decide, decided, default, flag, in_files, keys, shown, switch};
use super::optimizer::USUAL;
use super::value::{Decided, Value};
use super::{
    Attention, BatchSize, ByteSize, ConfigError, DecayShape, Gradients, Groups, InvalidUtf8, LrSchedule, Masters,
    ModelConfig, NameOrSize, Names, Order, Overflow, Precision, RawStage, Recompute, RecomputeChoice, RuleName,
    Sources, Span, StageConfig, States, StatesChoice, Values,
};

const AT_LEAST_1: Values = Values::Whole(1, u64::MAX);

keys! {
    of a run {
        "Model" {
            /// A named starting point; `host presets` lists them
            preset: String, flag("NAME").shown("quick-tiny");
            /// Begins from the weights of a model: a run made here, or a directory of Hugging Face's transformers
            init_from: String => Option<String>, flag("DIR")
                .page("A model whose weights a run begins from, see the [guide](guide.md#models-from-elsewhere)");
            /// Trains adapters of this rank beside the weights of --init-from, which stay as they are (LoRA); 0 for none
            lora_rank: u32 = 0, flag("N").quiet().within(Values::Whole(0, 65_536))
                .page("The rank of adapters, which learn in the place of the weights of init_from; 0 for none, see the \
                       [guide](guide.md#adapters)");
            /// α: what an adapter adds is multiplied with α / rank
            lora_alpha: f32 = USUAL_ALPHA, flag("X").quiet().within(Values::Positive);
            /// Which projections have adapters: all, attention, or a list of qkv, out, gate_up, down
            lora_targets: LoraTargets = LoraTargets::ALL, flag("LIST").quiet();
            /// What the weights beside adapters are kept in, f32, bf16 or int8 (8 bits, a scale a row); each is turned into what
            /// products read right before them
            base_type: BaseType => Option<BaseType>, flag("TYPE").shown("what the precision has");
            /// What a query sees: dense, local, global or mixed blocks of earlier tokens
            attention: Attention = Attention::Dense, flag("PATTERN")
                .page("dense, or a causal block pattern: query block i sees key block j if i − j ≤ window (local), j is a \
                       multiple of stride or j = i (global), either (mixed). `host plan` says what is kept; what the pattern \
                       does not use is refused");
            /// Tokens of a block of the attention pattern
            block: u32 = 64, flag("N").within(Values::OneOf(&[16, 32, 64]));
            /// Blocks back that local attention sees
            window: u32 = 1, flag("N");
            /// Distance of the blocks that global attention sees
            stride: u32, flag("N").shown("2; 4 for mixed");
        }
        "Data" {
            /// What to learn from: tales (built in), a file (.txt .jsonl .json .csv, each also .gz or .zst, .parquet) or a
            /// directory of such; several times, each with =WEIGHT behind it, for a mixture
            data: Names => Sources, flag("SOURCE").shown("tales")
                .page("Training source, see the [guide](guide.md#data), or an array of several with weights, see \
                       [mixtures](guide.md#mixtures)");
            /// A separate source for validation; without it a share of the documents is held out. Of a mixture one for all, or
            /// one for each --data in turn
            validation: Names => Option<Names>, flag("SOURCE")
                .page("A separate source for validation; without it a share of the documents is held out. Of a mixture one for \
                       all, or an array of one for each source");
            /// Holds out only documents of which the training side has no passages
            clean_validation: bool = false, switch().quiet()
                .page("Only documents are held out of which the training side has no passages: no more than a tenth of their tokens \
                       in 64 in a row that it has too");
            /// The field or column that holds a document's text
            text_field: String = "text".to_owned(), flag("NAME");
            /// Bytes of a text that are no UTF-8: refuse the file, or replace them by U+FFFD
            invalid_utf8: InvalidUtf8 = InvalidUtf8::Refuse, flag("refuse|replace").quiet()
                .page("Bytes of a text that are no UTF-8: refuse, or replace (by U+FFFD, counted), see the \
                       [guide](guide.md#data)");
            /// Skips lines of .jsonl, records of .csv and elements of .json that cannot be read as a document, and counts
            /// them
            skip_bad_lines: bool = false, switch().quiet();
            /// How conversations become text: the file of a template in Jinja
            chat_template: String => Option<String>, flag("FILE").quiet()
                .shown("the tokenizer's; else the default")
                .page("The file of a template in Jinja that makes text of conversations, see the \
                       [guide](guide.md#conversations)");
            /// Conversations that are longer than a sequence: cut leaves their end out, drop all of them
            overflow: Overflow = Overflow::Cut, flag("cut|drop").quiet();
            /// Of what is streamed, shuffles files, and documents in blocks of so many, anew in each pass; 0 for their own
            /// order
            shuffle: u32 = 0, flag("N").by_preset().later();
            /// The order of sequences: random (a permutation of all), pool (drawn from a part of the stream) or consecutive
            order: Order = Order::Consecutive, flag("ORDER").later()
                .shown("consecutive for tales; else random, where the tokens are or can be kept in files")
                .page("random (a permutation of all), pool (drawn from a part of the stream) or consecutive, see the \
                       [guide](guide.md#data)");
            /// Where tokens are kept once they are encoded, for other runs too; none for streaming
            cache: String => Option<String>, flag("DIR|none").shown("the run's directory").changes();
            /// Memory of the pool that streamed sequences are drawn from
            pool: ByteSize => u64 = 128 << 20, flag("SIZE").later()
                .page("Memory of the pool with `order = \"pool\"`, both halves together");
            /// word (capped vocabulary), byte, bpe (trained under the cap), or a tokenizer.json or its directory
            tokenizer: String, flag("KIND|FILE").by_preset()
                .shown("the preset's; bpe for text of your own where that is word");
        }
        "Training" {
            /// Sequences of a micro-batch; auto for the most that fit the budget
            batch_size: BatchSize => u32, flag("N|auto").by_preset()
                .page("Sequences of a micro-batch, or \"auto\", see [above](#the-largest-batch); a step has the product of \
                       batch_size, seq_len and accumulate in tokens");
            /// Tokens of a sequence
            seq_len: u32, flag("N").by_preset();
            /// Micro-batches of a step
            accumulate: u32, flag("N").shown("1, or the preset's").within(AT_LEAST_1);
            /// Steps of the run
            steps: u64, flag("N").by_preset().changes()
                .page("Steps of the run; where nobody says them, at most four epochs of encoded text of your own");
            /// Passes over the training split, instead of --steps
            epochs: u32 => Option<u32>, flag("N").not_beside("steps").neutral();
            /// Ends the run on time instead of after --steps: so long after it began the last checkpoint is written, for
            /// example 30m or 8h
            time: Span => Option<f64>, flag("SPAN").not_beside("steps").changes()
                .page("Instead of steps: how long after its beginning the run is to end, such as 90s, 30m or 1h30m, see \
                       [above](#a-run-that-ends-on-time)");
            /// The highest learning rate
            lr: f64 = 1e-3, flag("X").by_preset().within(Values::NotNegative);
            /// How the rate falls after the warm-up: cosine, linear (both to --lr-end), constant, or wsd (warm-up, stable,
            /// decay: constant until --decay)
            schedule: LrSchedule = LrSchedule::Cosine, flag("SHAPE").by_preset()
                .page("How the rate falls after the warm-up: cosine, linear (both to lr_end), constant, or wsd, see \
                       [above](#warm-up-stable-decay)");
            /// The share of the run's steps over which the rate of --schedule wsd falls, at its end
            decay: f64 = 0.1, flag("X").quiet().by_preset().changes().within(Values::PositiveShare);
            /// How it falls there: linear, cosine or sqrt (1 - √x)
            decay_shape: DecayShape = DecayShape::Linear, flag("SHAPE").quiet().changes()
                .page("How the rate of wsd falls: linear, cosine or sqrt (1 − √x)");
            /// The rate of the last step, as a share of the highest
            lr_end: f64 = 0.1, flag("X").quiet().by_preset().within(Values::Fraction)
                .page("The rate of the last step, as a share of lr, for a schedule that falls");
            /// Steps of warm-up
            warmup: u64, flag("N")
                .shown("the preset's, as large a share of a shorter run, and at least 1 % of it")
                .page("Steps of warm-up, see [above](#the-warm-up)");
            /// How parameters are moved: adamw, sgd (with momentum), lion, muon, which moves matrices and adamw the rest, or
            /// adamw_factored, which does so with tables too and keeps less
            optimizer: RuleName = RuleName::ADAMW, flag("RULE").quiet().by_preset()
                .page("How parameters are moved, see [above](#the-optimizer)");
            /// Decay of matrices and tables
            weight_decay: f32 = 0.1, flag("X").by_preset().within(Values::NotNegative);
            /// Weight decay of a step is as much lower than weight_decay as its rate is lower than lr
            decay_follows_rate: bool = false, switch().quiet().by_preset();
            /// The largest global norm of the gradient; 0 for no clip
            clip: f32 = 1.0, flag("X").by_preset().within(Values::NotNegative);
            /// The probability that a number of the embedding, or of what a layer's norms give, is dropped in a training step
            dropout: f32 = 0.0, flag("P").quiet().changes().within(Values::BelowOne)
                .page("The probability that a number is dropped in a training step, see [above](#dropout)");
            /// In training, attention stays inside documents: a position sees none of another one in its row
            mask_documents: bool = false, switch().quiet().changes()
                .page("In training, attention stays inside documents, see [above](#documents-in-a-row)");
            /// SGD's momentum; 0 keeps nothing
            momentum: f32 = USUAL.momentum, flag("X").quiet().within(Values::BelowOne);
            /// Muon's momentum, which rises to this over the first 300 steps
            muon_momentum: f32 = USUAL.muon_momentum, flag("X").quiet().within(Values::BelowOne);
            /// Muon's decay falls only on weights that move towards 0
            cautious_decay: bool = false, switch().quiet().by_preset();
            /// Rows of Muon's update are normalised (NorMuon)
            muon_row_norm: bool = false, switch().quiet().by_preset()
                .page("Rows of Muon's update are normalised (NorMuon), see [above](#the-optimizer)");
            /// β₁ of AdamW and Lion
            beta1: f32 = USUAL.beta1, flag("X").by_preset().within(Values::BelowOne);
            /// β₂ of AdamW and Lion
            beta2: f32 = USUAL.beta2, flag("X").by_preset().within(Values::BelowOne);
            /// AdamW's ε, which is added to the denominator
            eps: f32 = USUAL.eps, flag("X").quiet().within(Values::Positive);
            /// Keeps an exponential moving average of the weights with this decay, such as 0.999; 0 for none
            ema: f64 = 0.0, flag("D").quiet().changes().within(Values::BelowOne)
                .page("The decay of an exponential moving average of the weights, such as 0.999; 0 for none, see \
                       [above](#averages-of-the-weights)");
            /// Keeps the mean of the weights after each of the run's last so many steps; 0 for none
            average: u64 = 0, flag("K").quiet().changes()
                .page("Steps at the run's end whose weights are averaged; 0 for none, see \
                       [above](#averages-of-the-weights)");
            /// Decides initial weights, the built-in corpus, the held-out documents, their order and samples
            seed: u64 = 0, flag("N");
            /// Steps in a row with a loss or gradient that is not finite, which change nothing, before the run stops
            skip_non_finite: u32 = 5, flag("N").later().changes();
            /// Adds up gradients micro-batch by micro-batch, so that any number of ranks gives the same bits
            exact_ranks: bool = false, switch().quiet()
                .page("Gradients are added micro-batch by micro-batch, so that the number of processes changes no bit, see \
                       [cluster.md](cluster.md)");
            /// What ranks share, by the stages of ZeRO: 1 the optimizer, 2 gradients too
            zero: u32 = 1, flag("1|2").quiet().changes()
                .page("What several processes share, by the stages of ZeRO: 1 the optimizer, 2 gradients too, which costs \
                       messages, see [cluster.md](cluster.md#memory); one process shares neither, but for gradients with \
                       exact_ranks");
        }
        "Memory" {
            /// What the backward pass computes again to save memory: none, cheap, full, a list of activations as `host plan`
            /// names them, in the first three layers only where NAME:3, or fit:SIZE for the list that costs least time where
            /// the run has so much memory
            recompute: RecomputeChoice => Recompute = Recompute::NONE, flag("LEVEL|LIST|fit:SIZE").by_preset()
                .page("Activation recomputation: none, cheap, full, a list such as `cheap,gate_up:3` or `full,x8`, or \
                       `fit:SIZE`, see [above](#activations)");
            /// Rows of logits that exist at once
            chunk: u32, flag("N").shown("512, on a GPU 4096 or more, or the preset's")
                .page("Rows of logits computed at once; on cuda 8,192 or 16,384 where the run needs no more memory for it; a \
                       head of at most 128 columns in bf16 on compute capability 9.0 keeps none, so there 64 cost nothing");
            /// Moves each layer as soon as its gradients are formed, so that there is room for those of one layer alone; without
            /// a clip, in steps of one micro-batch
            release_gradients: bool = false, switch().quiet().changes()
                .page("Each layer is moved as soon as its gradients are formed, which have room for one layer then; without a \
                       clip, in steps of one micro-batch, see the [guide](guide.md#released-gradients)");
            /// Refuse a run that needs more memory than this, for example 4GiB
            budget: ByteSize => Option<u64>, flag("SIZE").shown("what is free, or all of the GPU").neutral();
            /// Plan for a GPU's memory: gtx1650, rtx3060, rtx3090, rtx4060, rtx4070, rtx4090, rtx5090, t4, l4, l40s, a10,
            /// a100-80, h100, h200, b200, or a size such as 22GiB
            gpu: NameOrSize => Option<String>, flag("NAME|SIZE").neutral();
        }
        "Device" {
            /// cpu, reference (plain loops) or cuda, cuda:N
            device: String, flag("DEVICE").shown("cpu; with --gpu, cuda").changes();
            /// Threads of the cpu device
            threads: u32, flag("N").shown("all cores").neutral().within(Values::Whole(1, 1024))
                .page("CPU threads; results do not depend on their number");
            /// f32, bf16 or fp8, as far as the device has them
            precision: Precision, flag("TYPE").shown("f32, or what the preset needs on a GPU").changes()
                .page("f32; on cuda also bf16; for transformers on GPUs of compute capability 8.9 and later also fp8");
            /// The type of the parameters' gradients, f32 or bf16: bf16 takes less memory and time, see the configuration's
            /// page
            gradients: Gradients = Gradients::F32, flag("TYPE").quiet().changes()
                .page("The type of the parameters' gradients: bf16 where precision is bf16 or fp8, see the \
                       [guide](guide.md#on-a-gpu)");
            /// The type of the optimizer's states, f32 or 8bit: blocks of 8-bit codes; auto for the least memory that costs no loss, or
            /// the cheapest that fits, see the configuration's page
            states: StatesChoice => States = States::F32, flag("TYPE").quiet().changes()
                .page("The type of the optimizer's states: f32, or 8bit, a quarter of it, see [below](#states-and-masters); \"auto\" decides \
                       masters, gradients and release_gradients too, see [there](#the-least-memory)");
            /// The type of the masters of weights in bf16, f32, f24 or bf16, see the configuration's page
            masters: Masters = Masters::F32, flag("TYPE").quiet().changes()
                .page("The type of the masters of weights in bf16: f32, f24 (3 bytes of it), or bf16 (none: weights are rounded by chance), see [below](#states-and-masters)");
        }
        "Output" {
            /// Steps between logged ones
            log_every: u64 = 10, flag("N").later().neutral().within(AT_LEAST_1);
            /// Steps between evaluations; 0 for the end only
            eval_every: u64 = 0, flag("N").by_preset();
            /// The most validation tokens of an evaluation
            eval_tokens: u64 = 65_536, flag("N").within(Values::Whole(2, u64::MAX));
            /// The most training tokens that the n-gram baselines are counted on; 0 for no baselines
            baseline_tokens: u32 = 1 << 22, flag("N").later().neutral()
                .page("The most training tokens that the n-gram baselines at the end of a run are counted on; 0 for no \
                       baselines, which saves a second or more of a short run");
            /// Steps between checkpoints; 0 for none by their number
            save_every: u64 = 0, flag("N").by_preset().neutral();
            /// Minutes after which a run is saved whatever its step; 0 for never
            save_minutes: f64 = 10.0, flag("N").later().neutral().within(Values::NotNegative);
            /// Checkpoints to keep
            keep: u32 = 2, flag("N").neutral().within(AT_LEAST_1);
            /// Keeps the checkpoint of the lowest validation loss too, beside the last ones; needs --eval-every
            keep_best: bool = false, switch().quiet().neutral()
                .page("The checkpoint of the lowest validation loss is kept too, beside the last ones, see the \
                       [guide](guide.md#the-best-checkpoint)");
            /// Draws a sample of the model at each evaluation, for the page of the run
            samples: bool = false, switch().quiet().neutral()
                .page("A sample of the model is drawn at each evaluation, for [`host report`](guide.md#report)");
            /// Ends the run after so many evaluations in a row without a lower validation loss; 0 for never
            patience: u32 = 0, flag("N").quiet().neutral()
                .page("Evaluations in a row without a lower validation loss after which the run ends; 0 for never");
        }
    }
    written alone {
        "Model" {
            /// Token ids of the model, special ones included: the cap
            vocab_size: u32, flag("N").by_preset()
                .page("Number of token ids; the cap of the word and bpe tokenizers, see the [guide](guide.md#tokenizers); \
                       where nobody says it, lowered to fit the data, 260 for byte, and a file's own");
        }
        "Training" {
            /// Tokens of a step at most, instead of --accumulate
            tokens_per_step: u64, flag("N").not_beside("accumulate")
                .page("Instead of accumulate: a step has as many micro-batches as this number of tokens holds");
            /// Multiplies the sequences of every stage of a curriculum: one that was made for another GPU
            stage_scale: f64, flag("X").shown("1")
                .page("Multiplies the batch_size of every stage, see [above](#a-curriculum)");
        }
        "Device" {
            /// The precision on a GPU where none is asked for: what a preset made for a GPU's memory needs
            gpu_precision: Precision, in_files().shown("f32; gtx1650 presets and neurogen-4gb bf16")
                .page("The precision on cuda where none is given; in files only");
        }
    }
}

impl Args for RawConfig {
    fn augment_args(command: Command) -> Command {
        let set = Arg::new("set")
            .long("set")
            .value_name("KEY=VALUE")
            .action(ArgAction::Append)
            .help_heading("Model")
            .help("A size or a part of the model, several times; `host presets --keys PRESET` lists the keys");
        let group = Arg::new("group")
            .long("group")
            .value_name("GROUP.KEY=VALUE")
            .action(ArgAction::Append)
            .help_heading("Training")
            .help(
                "What parameters of a group have of their own, several times: matrix, embedding, head, vector or synapse; \
                 optimizer (or frozen), lr (a factor), weight_decay, beta1, beta2, eps, momentum, muon_momentum",
            );
        command.args(RUN_KEYS.iter().filter_map(RunKey::arg)).arg(set).arg(group)
    }

    fn augment_args_for_update(command: Command) -> Command {
        RawConfig::augment_args(command)
    }
}

impl FromArgMatches for RawConfig {
    fn from_arg_matches(matches: &ArgMatches) -> Result<RawConfig, clap::Error> {
        let mut raw = RawConfig::default();
        raw.take(matches);
        Ok(raw)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.take(matches);
        Ok(())
    }
}
