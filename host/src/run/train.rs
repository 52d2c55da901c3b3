//! The training loop.

mod evaluations;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use capful_core::ops::Dropout;
use capful_core::train::{Curriculum, Settings, Stage};

use evaluations::Scores;

use super::Session;
use super::averages::Averaged;
use super::base::Base;
use super::checkpoint::{self, TrainerState};
use super::costs::Expected;
use super::directory;
use super::ending::Ending;
use super::energy::Energy;
use super::evaluate::Evaluator;
use super::evaluations::Evaluations;
use super::gauges::Gauges;
use super::metrics::{EvalMetrics, Metrics, StepMetrics};
use super::origin::Origin;
use super::outcome::{Outcome, TrainError};
use super::outlook::{self, Outlook};
use super::progress::{Ahead, Progress};
use super::restored::restore;
use super::sample::Samples;
use super::session::Rows;
use super::shapes::{blocks, shapes};
use super::speed::Speedometer;
use crate::allocations::{self, Activity};
use crate::config::{Config, ConfigError};
use crate::data::corpus::Corpus;
use crate::data::loader::{Batch, Loader, Slots, Turn};
use crate::data::sequences::mixture::{BySource, Shares};
use crate::data::snapshot::Began;
use crate::data::stream::Position;
use crate::data::validation::ValidationSet;
use crate::device::{DeviceError, Ticket};
use crate::plan::LOADER_SLOTS;
use crate::ranks::{SharedPeers, together};

/// Receives every logged step and every evaluation.
pub trait Observer {
    /// A logged step.
    fn step(&mut self, metrics: &StepMetrics);
    /// An evaluation.
    fn evaluation(&mut self, metrics: &EvalMetrics);
}

/// A prepared run: everything is allocated.
pub struct Trainer<'a> {
    config: &'a Config,
    /// The stages of the run's steps.
    stages: Vec<Stage>,
    /// The end of the run, and its learning rate until then.
    ending: Ending,
    energy: Energy,
    session: Session,
    loader: Loader,
    validation: &'a ValidationSet,
    evaluator: Evaluator,
    /// Whether tokens restore the bytes of their text.
    restores: bool,
    writer: checkpoint::Writer,
    /// Only on rank 0.
    metrics: Option<Metrics>,
    gauges: Gauges,
    state: TrainerState,
    /// The shares of the sources of a mixture.
    shares: Option<Shares>,
    /// Only on rank 0 of a run that draws samples: the samples and the run's directory.
    samples: Option<(Samples, PathBuf)>,
    /// The prediction of the final loss: only on rank 0, and for a text whose tokens are counted.
    outlook: Option<Outlook>,
    /// The last evaluation, of the weights and of their averages, and its step.
    scored: Option<(u64, Scores)>,
    /// Steps done before this session.
    first: u64,
    /// The run's directory, until this run's configuration is saved there.
    to_keep: Option<PathBuf>,
    /// Seconds in which steps waited for text.
    waited: f64,
    /// The most allocations of a single save.
    save: allocations::Count,
    /// When the run was last saved, or began.
    saved: Instant,
    /// Number of consecutive steps, up to the last concluded one, that changed nothing: see [`Trainer::passed_over`].
    in_a_row: u32,
    stop: Arc<AtomicBool>,
    /// The other ranks, if there are any.
    peers: Option<SharedPeers>,
    /// The union of the flags that the ranks sent in the last concluded step: [`STOP`] and others.
    told: u8,
    /// Why this rank cannot continue, until all ranks know.
    lost: Option<String>,
    /// A micro-batch of zeros, for a rank without data.
    nothing: Vec<u32>,
}

/// Flags that a rank sends to the others in a step: a signal arrived, it is time to save, it has lost its data or its
/// files, the end of a run with a time limit must be planned.
const STOP: u8 = 1;
const SAVE: u8 = 2;
const LOST: u8 = 4;
const PLAN: u8 = 8;

/// The state of a run before a step.
#[derive(Clone, Copy)]
struct Before {
    step: u64,
    tokens: u64,
    position: Position,
    averaged: Option<Averaged>,
}

/// A queued step.
struct Submitted {
    step: u64,
    tokens: u64,
    ticket: Ticket,
    before: Before,
}

impl<'a> Trainer<'a> {
    /// Prepares a run in `dir` from its beginning, or from `resume`, a complete checkpoint and its state.
    /// `model_config` is the model's config.json. SIGINT and SIGTERM set `stop`. The command began at `begun`.
    ///
    /// # Errors
    /// Data shorter than a batch; a checkpoint of another tokenizer, other data or another shape; the file system.
    #[allow(clippy::too_many_arguments, reason = "the parts of a run, each made by its own room")]
    pub fn new(
        config: &'a Config,
        mut session: Session,
        corpus: &Corpus,
        validation: &'a ValidationSet,
        dir: &std::path::Path,
        resume: Option<(PathBuf, TrainerState)>,
        model_config: Vec<u8>,
        stop: Arc<AtomicBool>,
        begun: Instant,
    ) -> Result<Trainer<'a>, DeviceError> {
        let mut sequences = corpus.training().map_err(refused)?;
        let stages = config.stages();
        let micro = stages.iter().map(Stage::micro_tokens).max().unwrap_or(0);
        let block = config.span().map_or(0, |span| Stage::largest_block(&stages, span));
        sequences.require(config.least_tokens()).map_err(refused)?;
        let Began { source, validation: validation_files, beside } = corpus.all_began();
        let mut state = TrainerState {
            step: 0,
            tokens: 0,
            position: Position::default(),
            tokenizer: corpus.tokenizer.fingerprint(),
            data: sequences.fingerprint(),
            source,
            validation: validation_files,
            beside,
            device: config.device.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            algorithms: Vec::new(),
            skipped: 0,
            evaluations: (config.eval_every > 0).then(Evaluations::default),
            averaged: None,
            base: None,
            timed: None,
        };
        if let Some((from, saved)) = resume {
            state = restore(&from, saved, state, config, &mut session)?;
            sequences.seek(state.position).map_err(refused)?;
        } else if let Some(origin) = &config.init_from {
            let lasting = session.laid.lasting.clone();
            let origin = Origin::of(origin.as_ref()).map_err(refused)?;
            if config.adapters().is_some() {
                state.base = Some(Base::of(&origin)?);
            }
            origin.restore(&lasting, &config.family(), &mut session.storage())?;
        }
        // On a CPU the GPU's algorithms stay in the state, in case the run returns to a GPU.
        state.algorithms = session.algorithms().unwrap_or(state.algorithms);
        let slots = Slots { count: LOADER_SLOTS as usize, capacity: micro as usize, block: block as usize };
        let blocks = config.span().map(|span| {
            let ends = config.stage.iter().skip(1).map(|stage| stage.from).collect();
            blocks(stages.clone(), ends, span)
        });
        let first = Curriculum::new(&stages).map_err(refused)?.micro_batches(state.step);
        let turn = Turn { rank: config.rank, ranks: config.ranks };
        let loader = Loader::start(sequences, shapes(stages.clone()), blocks, first, turn, slots).map_err(refused)?;
        let stage = session.evaluation_stage()?;
        let gauges = session.laid.places.gauges.clone();
        let tokenizer = Arc::clone(&corpus.tokenizer);
        let peers = session.peers();
        let writer = {
            let (lasting, peers) = (&session.laid.lasting, peers.clone());
            checkpoint::Writer::new(dir, (config.keep, config.keep_best), lasting, model_config, tokenizer, peers)
        };
        let mut writer = writer.map_err(refused)?;
        let expected = Expected::of(&session, config, &stages, validation, checkpoint::bytes(&session.laid.lasting));
        let ending = Ending::new(config, state.timed, expected, begun);
        let energy = Energy::start(&mut session);
        writer.go_on(state.evaluations);
        if let Some(evaluations) = &mut state.evaluations {
            // If the checkpoint of the old lowest loss is missing, the lowest loss from here on is used.
            evaluations.best = evaluations.best.filter(|best| !config.keep_best || writer.has(best.step));
        }
        let io = |e: io::Error| directory::DirectoryError::io(dir, &e);
        let metrics = (config.rank == 0).then(|| Metrics::open(dir, state.step)).transpose().map_err(io)?;
        let metrics = metrics.map(|metrics| metrics.of_sources(&corpus.labels()));
        let text = metrics.as_ref().and_then(|_| outlook::of_text(corpus, validation));
        let outlook = text.map(|text| Outlook::of(text, dir, state.step, ending.end())).transpose().map_err(io)?;
        let samples = (config.samples && config.rank == 0)
            .then(|| (Samples::new(config, &session, Arc::clone(&corpus.tokenizer), validation), dir.to_owned()));
        Ok(Trainer {
            config,
            stages,
            ending,
            energy,
            loader,
            validation,
            evaluator: Evaluator::of_ranks(stage.batch, stage.seq_len, peers.clone()),
            restores: corpus.tokenizer.restores_bytes(),
            writer,
            gauges: Gauges::new(gauges),
            metrics,
            shares: corpus.shares().cloned(),
            samples,
            outlook,
            session,
            scored: None,
            first: state.step,
            to_keep: Some(dir.to_owned()),
            waited: 0.0,
            save: allocations::Count::default(),
            saved: Instant::now(),
            in_a_row: 0,
            state,
            stop,
            nothing: vec![0; if peers.is_some() { micro as usize } else { 0 }],
            peers,
            told: 0,
            lost: None,
        })
    }

    /// Steps done so far.
    pub fn step(&self) -> u64 {
        self.state.step
    }

    fn kept(&self) -> String {
        match self.writer.last() {
            Some(path) => format!("the last good checkpoint is {}", path.display()),
            None => "there is no checkpoint yet".to_owned(),
        }
    }

    /// A failure of all ranks.
    fn failed(&self, what: impl std::fmt::Display) -> TrainError {
        TrainError::Failed { what: what.to_string(), kept: self.kept() }
    }

    /// A failure of this rank's device only.
    fn failed_here(&self, what: impl std::fmt::Display) -> TrainError {
        TrainError::Here { what: what.to_string(), kept: self.kept() }
    }

    /// Seconds of the GPU's steps so far.
    fn busy(&mut self) -> Option<f64> {
        self.session.device.gpu().map(|gpu| gpu.busy_seconds())
    }

    /// The stage of the step after `step` others, with its index.
    fn stage(&self, step: u64) -> (usize, Stage) {
        let index = Curriculum::new(&self.stages).map_or(0, |c| c.at(step));
        (index, self.stages[index])
    }

    /// The learning rate of the step after `step` others, which belongs to `stage`.
    fn learning_rate(&self, step: u64, stage: &Stage) -> f64 {
        self.ending.rate(step) * stage.rate
    }

    /// Queues a step: its micro-batches and the update. Returns `None` if the data ended.
    fn submit(&mut self) -> Result<Option<Submitted>, DeviceError> {
        let (index, stage) = self.stage(self.state.step);
        let TrainerState { step, tokens, position, averaged, .. } = self.state;
        let rate = self.learning_rate(step, &stage);
        let decay = self.config.decay_factor(rate);
        let settings = Settings::of(step, rate, &self.config.optimizer(), stage.clip, stage.step_tokens());
        let next = self.config.averaging().map(|averaging| Averaged::next(&averaging, step, averaged));
        let (average, averaging) = next.unwrap_or_default();
        let mut settings = Settings { decay, average, ..settings };
        let micro_batches = self.session.laid.sections.accumulate[index];
        let ranks = self.session.laid.sections.ranks;
        for micro in 0..micro_batches {
            let asked = Instant::now();
            let batch = match self.loader.take() {
                Ok(None) => return Ok(None),
                Ok(batch) => batch,
                Err(e) if self.peers.is_none() => return Err(DeviceError::Failed(e.to_string())),
                Err(e) => {
                    // The other ranks are in this step: it continues, but changes nothing.
                    self.lost.get_or_insert_with(|| e.to_string());
                    None
                }
            };
            self.waited += asked.elapsed().as_secs_f64();
            if let Some(targets) = batch.as_ref().and_then(Batch::targets_of_step) {
                // The mean is over all targets, however they are divided among the micro-batches.
                settings.loss_scale = (1.0 / targets.max(1) as f64) as f32;
            }
            if micro == 0 {
                // Only after its data has arrived: waiting for the reader does not count as GPU time.
                self.session.begin(settings)?;
            }
            let told = self.news();
            let nothing = &self.nothing[..if batch.is_none() { stage.micro_tokens() as usize } else { 0 }];
            let rows = batch.as_ref().map_or(Rows::of(nothing), |batch| Rows {
                ids: batch.tokens(),
                targets: batch.targets(),
                offsets: batch.offsets(),
            });
            if batch.is_none() {
                self.session.set(Settings { loss_scale: f32::NAN, ..settings })?;
            }
            let number = Curriculum::new(&self.stages).map_or(0, |c| c.number(step, micro, ranks));
            self.session.mask(index, Dropout::key(self.config.seed, number))?;
            // In exact mode the ranks receive the flags in every micro-batch, otherwise in the update: in the last one
            // all receive the same flags.
            self.session.tell(f32::from(told))?;
            match micro + 1 < micro_batches {
                true => self.session.micro_batch(index, rows, micro == 0)?,
                false => self.session.last_micro_batch(index, rows, micro == 0)?,
            }
            self.state.position = batch.map_or(self.state.position, |batch| batch.position());
        }
        let ticket = self.session.finish()?;
        self.state.step += 1;
        self.state.tokens += stage.step_tokens();
        self.state.averaged = averaging;
        let before = Before { step, tokens, position, averaged };
        Ok(Some(Submitted { step: self.state.step, tokens: self.state.tokens, ticket, before }))
    }

    /// The flags that this rank sends to the others. The clock of rank 0 decides.
    fn news(&self) -> u8 {
        let flag = |flag, raised| if raised { flag } else { 0 };
        flag(STOP, self.stop.load(Ordering::Relaxed))
            | flag(SAVE, self.config.rank == 0 && self.saves_now())
            | flag(PLAN, self.config.rank == 0 && self.ending.is_due(self.config, &self.stages, self.state.step))
            | flag(LOST, self.lost.is_some())
    }

    /// Ends the run on all ranks after a step in which one of them had no data: saves the state before that step.
    fn end_with_the_lost(&mut self, before: Before) -> TrainError {
        let Before { step, tokens, position, averaged } = before;
        (self.state.step, self.state.tokens, self.state.position) = (step, tokens, position);
        self.state.averaged = averaged;
        let lost =
            together::together(self.peers.as_ref(), self.lost.take().map_or(Ok(()), Err), String::clone, |elsewhere| {
                elsewhere.what
            });
        let what = lost.err().unwrap_or_default();
        match self.save() {
            Ok(()) => self.failed(what),
            Err(_) => self.failed(format!("{what}; and that step could not be saved")),
        }
    }

    /// Waits for a step if there is one, checks its loss and logs it where that is scheduled.
    fn conclude(
        &mut self,
        submitted: Option<Submitted>,
        meter: &mut Speedometer,
        observer: &mut dyn Observer,
        progress: &Progress,
    ) -> Result<(), TrainError> {
        let Some(Submitted { step, tokens, ticket, before }) = submitted else { return Ok(()) };
        let results = self.session.results(ticket).map_err(|e| self.failed_here(e))?;
        self.told = match &self.peers {
            Some(_) => self.session.of_ranks().fold(0, |told, [_, news]| told | news as u8),
            None => self.news(),
        };
        if self.told & LOST != 0 {
            return Err(self.end_with_the_lost(before));
        }
        self.clock(step, progress);
        let (loss, norm) = (f64::from(results.loss), f64::from(results.squared_norm).sqrt());
        self.passed_over(step, loss, norm)?;
        self.state.evaluations.iter_mut().for_each(|evaluations| evaluations.train(loss));
        if let Err(e) = self.keep_config() {
            self.lose_file(e)?;
        }
        if step.is_multiple_of(self.config.log_every) || step == self.ending.end() || step == self.first + 1 {
            let speed = meter.read(tokens, self.busy(), self.waited);
            let (index, stage) = self.stage(step - 1);
            let lr = self.learning_rate(step - 1, &stage);
            let gauges = self.gauges.read(&mut self.session.device).map_err(|e| self.failed_here(e))?;
            let skipped = self.state.skipped;
            let drawn = self.shares.as_ref().map_or(BySource::NONE, |shares| shares.drawn(tokens));
            let metrics = StepMetrics { step, stage: index + 1, loss, lr, norm, skipped, tokens, drawn, speed, gauges };
            if let Err(e) = self.metrics.as_mut().map_or(Ok(()), |to| to.step(&metrics)) {
                self.lose_file(e)?;
            }
            observer.step(&metrics);
            progress.step(step, index, loss, skipped, speed.tokens_per_s);
        }
        Ok(())
    }

    /// Records the time of the finished step, unless it is one of the first, and the predictions from it.
    fn clock(&mut self, step: u64, progress: &Progress) {
        // A GPU's first results take two steps.
        let first = step <= self.first + 1 + u64::from(self.session.device.gpu().is_some());
        match first && self.ending.end() > step {
            true => self.ending.costs.pass(),
            false => self.ending.costs.step(self.stage(step - 1).0),
        }
        let (config, stages) = (self.config, &self.stages[..]);
        if let Some(end) = self.ending.likely_end(config, stages, step) {
            progress.done(step, Ahead { end, left: self.ending.left(config, stages, step) });
        }
        let before = self.ending.predicted;
        let told = self.ending.tell(config, stages, step);
        let expected = self.ending.predicted.filter(|_| self.ending.predicted != before);
        self.energy.pass(expected, &mut self.session);
        if let Some(seconds) = told {
            let speed = self.stages[self.stage(step).0].step_tokens() as f64
                / self.ending.costs.of_step(self.stage(step).0).unwrap_or(f64::INFINITY);
            progress.tell(seconds, speed);
        }
    }

    /// Begins the decay of a run with a time limit, or moves its end.
    fn plan_the_end(&mut self) -> Result<(), TrainError> {
        let (config, step) = (self.config, self.state.step);
        let end = self.ending.fall(config, &self.stages, step, self.peers.as_ref());
        let end = end.map_err(|e| self.failed(e))?;
        // For readers in the meantime, and for a run that continues from here.
        let dir = self.writer.dir();
        let keep = || directory::keep_config(dir, &Config { steps: end, ..config.clone() });
        let kept = if config.rank == 0 { allocations::during(Activity::Save, keep) } else { Ok(()) };
        kept.or_else(|e| self.lose_file(e))
    }

    /// Saves the current configuration as that of the run, once. This happens only after a successful step: until then
    /// a resume that fails has changed nothing.
    fn keep_config(&mut self) -> Result<(), ConfigError> {
        match self.to_keep.take().filter(|_| self.config.rank == 0) {
            Some(dir) => directory::keep_config(&dir, self.config),
            None => Ok(()),
        }
    }

    /// Handles a file of rank 0 that could not be written. The other ranks learn of it in the next step, or at the
    /// evaluation after the last step.
    fn lose_file(&mut self, error: impl std::fmt::Display) -> Result<(), TrainError> {
        if self.peers.is_none() {
            return Err(self.failed(error));
        }
        self.lost.get_or_insert_with(|| error.to_string());
        Ok(())
    }

    /// Counts a step whose loss or norm is not finite: its update left weights, moments and masters unchanged, so the
    /// run can continue. It has used its data and its step number. Too many such steps in a row have a permanent cause.
    fn passed_over(&mut self, step: u64, loss: f64, norm: f64) -> Result<(), TrainError> {
        if loss.is_finite() && norm.is_finite() {
            self.in_a_row = 0;
            return Ok(());
        }
        self.in_a_row += 1;
        self.state.skipped += 1;
        let most = self.config.skip_non_finite;
        if self.in_a_row <= most {
            return Ok(());
        }
        let before = if most > 0 { format!(", after {most} such steps that were skipped") } else { String::new() };
        let ranks = self.session.of_ranks().enumerate().filter(|(_, [loss, _])| !loss.is_finite());
        let ranks: Vec<_> = ranks.map(|(rank, _)| rank.to_string()).collect();
        let on = match (&self.peers, &ranks[..]) {
            (None, _) | (_, []) => String::new(),
            (_, ranks) => format!(" (the loss of rank {})", ranks.join(", ")),
        };
        let what = format!("the loss is {loss} and the gradient's norm {norm}{on}");
        Err(self.failed(format!("step {step}: {what}{before}; lower --lr")))
    }

    /// Ends a run after a signal, once it is saved.
    fn interrupted(&mut self) -> TrainError {
        if let Err(e) = self.save() {
            return e;
        }
        let checkpoint = self.writer.last().map(PathBuf::from).unwrap_or_default();
        TrainError::Interrupted { step: self.state.step, checkpoint }
    }

    fn save(&mut self) -> Result<(), TrainError> {
        self.write(true)
    }

    /// Writes a checkpoint, unless one of this step exists. If it is `sound`, the oldest ones are removed.
    fn write(&mut self, sound: bool) -> Result<(), TrainError> {
        let before = allocations::count(Activity::Save);
        self.ending.costs.pass();
        let is_new = allocations::during(Activity::Save, || !self.writer.has(self.state.step));
        self.state.timed = self.ending.timed();
        let saved = self.writer.save(&mut self.session.storage(), &self.state, sound).map_err(|e| e.to_string());
        let sealed = || allocations::during(Activity::Save, || self.metrics.as_ref().map_or(Ok(()), Metrics::seal));
        let saved = saved.and_then(|()| sealed().map_err(|e| e.to_string()));
        saved.map_err(|e| self.failed(format!("the checkpoint of step {} was not written: {e}", self.state.step)))?;
        let made = allocations::since(Activity::Save, before);
        if made.bytes > self.save.bytes {
            self.save = made;
        }
        self.saved = Instant::now();
        if is_new {
            self.ending.costs.save();
        }
        Ok(())
    }

    /// Whether a checkpoint is scheduled by time.
    fn saves_now(&self) -> bool {
        let minutes = self.config.save_minutes;
        minutes > 0.0 && self.saved.elapsed() >= Duration::try_from_secs_f64(60.0 * minutes).unwrap_or(Duration::MAX)
    }

    /// Runs to the last step, evaluates, saves, and returns the session.
    ///
    /// # Errors
    /// [`TrainError`].
    pub fn run(mut self, observer: &mut dyn Observer, progress: &Progress) -> Result<(Outcome, Session), TrainError> {
        self.ending.start();
        self.energy.restart(&mut self.session);
        let before = self.state.tokens;
        self.saved = Instant::now();
        let busy = self.busy();
        let mut meter = Speedometer::start(self.state.tokens, busy);
        let (mut warm, mut warm_read) = (None, Default::default());
        // A GPU's results are read while the next step runs.
        let ahead = self.session.device.gpu().is_some();
        let mut pending = None;
        let mut due = false;
        self.catch_up(observer, progress)?;
        while self.state.step < self.ending.end() && !self.is_out_of_patience() {
            let submitted = self.submit();
            let Some(submitted) = submitted.map_err(|e| self.failed_here(e))? else { break };
            let known = if ahead { pending.replace(submitted) } else { Some(submitted) };
            self.conclude(known, &mut meter, observer, progress)?;
            let step = self.state.step;
            // All first-time work is over once a step's results were read.
            if step == self.first + 1 + u64::from(ahead) {
                warm = Some(allocations::count(Activity::Step));
                warm_read = allocations::count(Activity::Read);
            }
            if step == self.ending.end() {
                break;
            }
            let turn = |every: u64| every > 0 && step.is_multiple_of(every);
            let told = if self.peers.is_some() { self.told } else { self.news() };
            let (stop, evaluate, plan) = (told & STOP != 0, self.evaluation_is_due(), told & PLAN != 0);
            // A checkpoint from before the decay lets the run continue with more time.
            let falls = plan && self.ending.timed().is_some_and(|timed| timed.fall.is_none());
            due |= turn(self.config.save_every) || told & SAVE != 0 || falls;
            if stop || evaluate || due {
                // An evaluation or a save waits for the loss of its own step.
                self.conclude(pending.take(), &mut meter, observer, progress)?;
            }
            // While steps have no finite loss, the weights may be the cause: such weights replace no good checkpoint.
            let sound = self.in_a_row == 0;
            if stop && sound {
                return Err(self.interrupted());
            }
            let stopped = evaluate && self.evaluate(observer, progress)?.is_none();
            if stopped && sound {
                return Err(self.interrupted());
            }
            due |= self.is_to_keep();
            if due && sound {
                self.save()?;
                due = false;
            }
            if plan {
                self.plan_the_end()?;
            }
        }
        self.conclude(pending.take(), &mut meter, observer, progress)?;
        let scored = self.scored.filter(|(step, _)| *step == self.state.step);
        let Scores { score, averaged } = match scored {
            Some((_, scores)) => scores,
            None => {
                // Saved before an evaluation, which may take minutes; earlier checkpoints stay until the evaluation
                // confirms this one.
                if self.in_a_row == 0 {
                    self.write(false)?;
                }
                let Some(scores) = self.evaluate(observer, progress)? else { return Err(self.interrupted()) };
                scores
            }
        };
        self.save()?;
        // If no step was left to do.
        let kept = self.keep_config().map_err(|e| e.to_string());
        together::together(self.peers.as_ref(), kept, String::clone, |elsewhere| elsewhere.what)
            .map_err(|e| self.failed(e))?;
        let seconds = self.ending.costs.elapsed();
        let best = self.state.evaluations.and_then(|evaluations| evaluations.best);
        let outcome = Outcome {
            score,
            averaged,
            steps: self.state.step,
            end: self.ending.end(),
            impatient: self.is_out_of_patience(),
            seconds,
            predicted: self.ending.predicted,
            joules: self.energy.joules(&mut self.session),
            predicted_joules: self.energy.predicted(),
            predicted_end: self.outlook.as_ref().and_then(Outlook::first),
            parts: self.ending.costs.parts(),
            timed: self.ending.timed().map(|timed| timed.seconds),
            tokens: self.state.tokens,
            session_tokens: self.state.tokens - before,
            allocations: warm.map_or(0, |w| allocations::since(Activity::Step, w).allocations),
            loader_allocations: allocations::since(Activity::Read, warm_read).allocations,
            // Only after the allocations were counted: this call allocates.
            best: best.map(|best| (best, self.writer.has(best.step))),
            save: self.save,
            waited: meter.lost(),
            gpu: self.busy().zip(busy).map(|(now, before)| (now - before) / seconds),
        };
        Ok((outcome, self.session))
    }
}

/// A wrong request of any kind.
fn refused(error: impl std::fmt::Display) -> DeviceError {
    DeviceError::Refused(error.to_string())
}
