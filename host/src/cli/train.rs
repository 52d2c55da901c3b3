//! `host train`.

use capful_base::human_bytes;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use capful_core::train::Curriculum;
use serde_json::json;

use super::opened::{
    Decided, MOST_EPOCHS, count_epochs, encoded, encoding, open, require_ahead, tell_of_data, tell_of_flaws,
};
use super::output::{fitting, say, tell, tell_within, within};
use super::record::{began, ended};
use super::report::{Beside, expected, report, result, waited};
use super::suggest;
use super::team::{self, Team, tell_of_ranks};
use super::usage::Usage;
use super::watched::{Lines, Watched, served};
use super::{Failure, RunFlags, end_with_the_reader, request, say_warnings, settle_beside, work};
use crate::config::{Config, ConfigError, Device, IMPORTED, RawConfig, Span, States};
use crate::data::corpus::{Corpus, Drawn};
use crate::data::coverage;
use crate::data::found;
use crate::data::validation::ValidationSet;
use crate::device::cuda::gpus;
use crate::device::{Choice, DeviceError};
use crate::format::hugging_face;
use crate::live::{self, Bound};
use crate::name;
use crate::plan::course::Course;
use crate::plan::{Laid, Machine, Plan};
use crate::regular;
use crate::run::checkpoint::TrainerState;
use crate::run::claim::Claim;
use crate::run::origin::Origin;
use crate::run::outcome::TrainError;
use crate::run::progress::Progress;
use crate::run::sample::Samples;
use crate::run::train::Trainer;
use crate::run::{Session, checkpoint, directory, generation, metrics, moved};
use crate::suggest::wants_a_rate;
use capful_base::words::{counted, grouped, short};

/// Flags of `host train`.
#[derive(Debug, clap::Args)]
pub struct Train {
    #[command(flatten)]
    flags: RunFlags,
    /// The run's directory; without it a new one, runs/PRESET-NNN
    #[arg(long, help_heading = "Output", value_name = "DIR")]
    out: Option<PathBuf>,
    /// Continues the run in --out with its saved configuration, or begins it where nothing was saved yet
    #[arg(long, help_heading = "Output", requires = "out")]
    resume: bool,
    /// Uses the GPU's algorithms of another run, its plan.json: then the same run gives the same bits
    #[arg(long, help_heading = "Device", value_name = "FILE", conflicts_with = "resume")]
    algorithms: Option<PathBuf>,
    /// Decides shape, vocabulary, batch, length and rate for the --time and the --budget there are, as `host suggest` does
    #[arg(long, help_heading = "Training", conflicts_with = "resume")]
    suggest: bool,
    /// Every region of memory, every stage and every line outside the arena, before the summary
    #[arg(long, help_heading = "Output")]
    regions: bool,
    /// JSON on standard output: a line a logged step and evaluation, and a last one
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// Serves the page of `host report` on http://127.0.0.1:PORT/ while the run goes on, at 8080 where no port is named; 0
    /// lets the system choose one
    #[arg(long, help_heading = "Output", value_name = "PORT", num_args = 0..=1, default_missing_value = live::PORT)]
    live: Option<u16>,
}

/// Which output of a run is shown.
#[derive(Debug, Clone, Copy)]
struct Shown {
    /// Only JSON.
    json: bool,
    /// The whole list of memory regions.
    regions: bool,
}

impl Train {
    /// The run that `raw` describes, in the directory `out`.
    pub(super) fn of(raw: RawConfig, out: PathBuf) -> Train {
        let flags = RunFlags { config: None, raw };
        Train {
            flags,
            out: Some(out),
            resume: false,
            algorithms: None,
            regions: false,
            json: false,
            suggest: false,
            live: None,
        }
    }

    /// Runs the command; the command began at `begun`.
    pub(super) fn run(self, begun: Instant) -> Result<(), Failure> {
        // Before anything is created, searched or read. With several ranks only one serves, and all ranks learn if the
        // port is taken.
        let bound = self.live.filter(|_| !team::follows()).map(Bound::to).transpose().map_err(Failure::from);
        let bound = if team::launched() { bound } else { Ok(bound?) };
        // Read only once: a pipe is empty when it is read again.
        let written = match self.suggest {
            true if team::launched() => {
                return Err(request("--suggest is for one process; give several what it finds"));
            }
            true => Ok(suggest::find(self.flags.written()?, self.live_bytes())?.raw()),
            false => self.flags.written(),
        };
        let team = Team::join(|| self.on_gpus(written.as_ref().ok()))?;
        let done = team.begin().and_then(|()| {
            let bound = team.agree(bound, &[])?;
            self.run_on(&team, written, bound, begun)
        });
        team.end(done)
    }

    /// Whether the run is for GPUs, as far as that is known before anything is checked.
    fn on_gpus(&self, written: Option<&RawConfig>) -> bool {
        let saved = self.out.as_deref().filter(|_| self.resume).and_then(|dir| directory::read_config(dir).ok());
        let named = written.and_then(|written| written.device.clone());
        let planned = written.filter(|written| written.gpu.is_some()).map(|_| "cuda".to_owned());
        let device = named.or(saved.map(|config| config.device)).or(planned);
        device.is_some_and(|device| device.starts_with("cuda"))
    }

    fn run_on(
        self,
        team: &Team,
        written: Result<RawConfig, ConfigError>,
        bound: Option<Bound>,
        begun: Instant,
    ) -> Result<(), Failure> {
        // Before rank 0 creates anything.
        let there = self.out.clone().filter(|dir| directory::holds_run(dir));
        let written = written.map_err(Failure::from).and_then(|written| team.write(written));
        let there = team.agree(
            written.and_then(|written| match there {
                Some(dir) if !self.resume => Err(request(format!(
                    "{} holds a run already; continue it with --resume or name another with --out",
                    dir.display()
                ))),
                there => Ok((there, written)),
            }),
            &[],
        )?;
        match there {
            (Some(dir), written) => {
                let claim = team.led(|| Ok(Claim::of(&dir)?))?;
                self.go_on(team, Claimed { dir, _claim: claim }, written, (bound, begun))
            }
            (None, written) => {
                team.agree(self.require_start(&written), &[])?;
                let vocabulary = written.decides_vocabulary() || written.init_from.is_some();
                // The configuration of a saved run has both keys: its epochs were converted to steps.
                let steps = written.steps.filter(|_| written.epochs.is_some());
                let length = written.gives_length();
                let decided = Decided { warmup: written.warmup.is_some(), vocabulary, length, steps };
                let (config, machine) =
                    team.agree(settle_beside(written, self.live_bytes()).map_err(Failure::from), &[])?;
                self.begin(team, config, machine, decided, (None, bound, begun))
            }
        }
    }

    /// Refuses the configuration of an imported model as that of a new run: it names no weights.
    fn require_start(&self, written: &RawConfig) -> Result<(), Failure> {
        if written.preset.as_deref() != Some(IMPORTED) || written.init_from.is_some() {
            return Ok(());
        }
        let dir = self.flags.config.as_deref().and_then(Path::parent).map_or("DIR".into(), Path::to_string_lossy);
        Err(request(format_args!(
            "this is the configuration of an imported model, which was not trained here; begin from its weights with \
             --init-from {}",
            if dir.is_empty() { "." } else { &*dir }
        )))
    }

    /// Bytes of the page that is served during the run. All ranks count them: their plans must not differ.
    fn live_bytes(&self) -> u64 {
        if self.live.is_some() { live::bytes() } else { 0 }
    }

    fn shown(&self, team: &Team) -> Shown {
        Shown { json: self.json && team.leads(), regions: self.regions }
    }

    /// Continues the run in the claimed directory, or starts it again if nothing was saved yet.
    fn go_on(
        self,
        team: &Team,
        claimed: Claimed,
        written: RawConfig,
        (bound, at): (Option<Bound>, Instant),
    ) -> Result<(), Failure> {
        let dir = &*claimed.dir;
        let read = || -> Result<_, Failure> {
            let mut saved = directory::read_config(dir)?;
            let time = written.time.map(|Span(time)| time).or(saved.time);
            let from = checkpoint::to_go_on_from(dir, time).map_err(request)?;
            let named = |e| request(format_args!("{}: {e}", dir.display()));
            let with_state = from.as_deref().filter(|from| from.join(checkpoint::STATE).exists());
            let state = with_state.map(checkpoint::read_state).transpose().map_err(request)?;
            let began = state.as_ref().map(TrainerState::began).unwrap_or_default();
            let began = moved::follow(&mut saved, &written, from.as_deref(), began).map_err(named)?;
            let (config, found) = saved.resumed_with(written, &found::find).map_err(named)?;
            let machine = Machine { live: self.live_bytes(), ..Machine::with(&config, found)? };
            Ok((saved, config, machine, from, state, began))
        };
        let (saved, mut config, machine, from, state, began) = team.agree(read(), &[])?;
        let Some(from) = from else {
            let decided = Decided { warmup: true, vocabulary: true, length: true, steps: None };
            return self.begin(team, config, machine, decided, (Some(claimed), bound, at));
        };
        // A path that is not a file is refused by the code that continues the run.
        let lines = match regular::require(&dir.join(metrics::LINES)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Ok(None),
            _ => metrics::compare(dir),
        };
        if let Err(what) = lines {
            tell!("{}: {what}; lines that do not parse are left out, and the run goes on", name::called());
        }
        let state = || -> Result<_, Failure> {
            let Some(state) = state else {
                return Err(request(format!(
                    "{} holds an imported model, which has no optimizer state to go on with; begin a run from it with \
                     --init-from {} and another --out",
                    from.display(),
                    dir.display()
                )));
            };
            crate::plan::profile(&config)?.require()?;
            let text = serde_json::to_vec(&state).map_err(work)?;
            Ok((state, team::digest(&text)))
        };
        let state = state();
        let digest = state.as_ref().map_or(0, |(_, digest)| *digest);
        let (state, _) = team.agree(state, &[("checkpoint", digest)])?;
        let step = state.step;
        team.agree(require_ahead(&config, dir, step), &[])?;
        let corpus = team.led_by_first(|| {
            if began.source.is_some() {
                tell_of_data(&config, Some(&began), self.json);
            }
            let mut say = encoding(&config, dir, self.json);
            Corpus::reopen(&config, &from, dir, began, Some(&mut say)).map_err(encoded)
        })?;
        let mut counted = || -> Result<_, Failure> {
            count_epochs(&mut config, &corpus, true)?;
            require_ahead(&config, dir, step)?;
            config.validate_schedule()?;
            Ok(config.require_decay_ahead(&saved, step)?)
        };
        let counted = counted();
        if let Some(line) = team.agree(counted, &[])? {
            tell!("{line}");
        }
        let algorithms = state.algorithms.clone();
        let shown = self.shown(team);
        let from = Begun { resume: Some((from, state)), instead_of: None, algorithms, planned: None };
        let job = Job { team, config: &config, warmup: true, machine, corpus: &corpus, dir, shown, bound, begun: at };
        job.run(from)
    }

    /// Starts the run of `config`, with the settings that the user made in `decided`, in a command that began at
    /// `begun`. If the run was started before, its directory is claimed already.
    fn begin(
        self,
        team: &Team,
        mut config: Config,
        machine: Machine,
        decided: Decided,
        (claimed, bound, begun): (Option<Claimed>, Option<Bound>, Instant),
    ) -> Result<(), Failure> {
        let shown = self.shown(team);
        let Train { out, algorithms, json, .. } = self;
        // Refused before a GPU is used and the data is read, if it can be known.
        let fits = || -> Result<_, Failure> {
            if let Some(dir) = &config.init_from {
                Origin::of(dir.as_ref())?.require_weights().map_err(request)?;
            }
            let (plan, laid) = Plan::new(&config, &machine)?;
            plan.require_fit(&config, &machine)?;
            machine.require_main_memory(&config, &plan)?;
            crate::plan::profile(&config)?.require()?;
            Ok((config.clone(), plan, laid))
        };
        let (planned, plan, laid) = team.agree(fits(), &[])?;
        let claimed = claimed.map_or_else(|| Claimed::new(team, out.as_deref(), &config.preset), Ok)?;
        let dir = &*claimed.dir;
        let preset = config.steps;
        let corpus = team.led_by_first(|| open(&mut config, dir, decided, json))?;
        let instead_of = (config.steps < preset).then_some(preset);
        let algorithms = match algorithms {
            Some(_) if !config.device.starts_with("cuda") => {
                Err(request(format!("--algorithms is for GPUs; the device is {}", config.device)))
            }
            algorithms => {
                algorithms.as_deref().map_or(Ok(Vec::new()), directory::read_algorithms).map_err(Failure::from)
            }
        };
        let algorithms = team.agree(algorithms, &[])?;
        // The data may have changed the length or the vocabulary.
        let planned = (planned == config).then_some((plan, laid));
        let from = Begun { resume: None, instead_of, algorithms, planned };
        let job =
            Job { team, config: &config, warmup: decided.warmup, machine, corpus: &corpus, dir, shown, bound, begun };
        job.run(from)
    }
}

/// A run's directory, which rank 0 has claimed.
struct Claimed {
    dir: PathBuf,
    /// The claim, until it is dropped.
    _claim: Option<Claim>,
}

impl Claimed {
    /// Claims `out`, or the next free directory of a preset, for a new run.
    fn new(team: &Team, out: Option<&Path>, preset: &str) -> Result<Claimed, Failure> {
        let claim = team.led(|| {
            let claim = out.map_or_else(|| Claim::next(preset), Claim::of)?;
            directory::require_free(claim.dir())?;
            Ok(claim)
        })?;
        let dir = team.path(claim.as_ref().map(|claim| claim.dir().to_owned()))?;
        Ok(Claimed { dir, _claim: claim })
    }
}

/// How a run starts.
struct Begun {
    /// The checkpoint that it continues from, and its state.
    resume: Option<(PathBuf, TrainerState)>,
    /// The preset's number of steps, if the text reduced it.
    instead_of: Option<u64>,
    /// The GPU's algorithms to use again.
    algorithms: Vec<Choice>,
    /// Its plan, if that exists already.
    planned: Option<(Plan, Laid)>,
}

/// One training job.
struct Job<'a> {
    team: &'a Team,
    config: &'a Config,
    /// Whether the user set its warm-up.
    warmup: bool,
    machine: Machine,
    corpus: &'a Corpus,
    dir: &'a Path,
    shown: Shown,
    /// The port on which the run's page will be served.
    bound: Option<Bound>,
    /// When the command began.
    begun: Instant,
}

impl Job<'_> {
    fn run(self, from: Begun) -> Result<(), Failure> {
        let Job { team, config, warmup, machine, corpus, dir, shown: Shown { json, regions }, bound, begun } = self;
        let Begun { resume, instead_of, algorithms, planned } = from;
        // Reading the data took time: the currently free memory counts.
        let machine = machine.now();
        let tokenizer = corpus.tokenizer.as_ref();
        let generation = generation::of_run(dir, config, tokenizer.eos()).map_err(Failure::from);
        let marks = team.agree(generation, &[])?.marks(tokenizer);
        let model_config =
            hugging_face::config(&config.family(), &config.pattern(), &marks, config.precision.of_weights());
        let model_config = serde_json::to_vec_pretty(&model_config).map_err(work)?;
        let prepare = || -> Result<_, Failure> {
            let (plan, laid) = match planned {
                Some((plan, laid)) => (plan.within_budget_of(config, &machine)?, laid),
                None => Plan::new(config, &machine)?,
            };
            plan.require_fit(config, &machine)?;
            machine.require_main_memory(config, &plan)?;
            let validation = corpus.validation(config.eval_tokens).map_err(request)?;
            let overlap = corpus.overlap(&validation.set).map_err(request)?;
            Ok((plan, laid, validation, overlap))
        };
        let (plan, laid, validation, overlap) = team.agree(prepare(), &[])?;
        tell_of_flaws(corpus);
        let start = || -> Result<_, Failure> {
            let profile = crate::plan::profile(config)?;
            let session = Session::start_training(laid, &profile, config, &algorithms, team.peers())?;
            let digests = [
                ("configuration", team::digest_of(config)?),
                ("plan", team::digest_of_plan(&plan)),
                ("tokenizer", tokenizer.fingerprint()),
                ("data", corpus.training().map_err(request)?.fingerprint()),
                ("validation data", validation.set.bytes()),
                ("GPU", team::digest(gpu_of(config)?.as_bytes())),
            ];
            Ok((session, digests))
        };
        let started = start();
        let digests = started.as_ref().map_or(Vec::new(), |(_, digests)| digests.to_vec());
        let (mut session, _) = team.agree(started, &digests)?;
        let at = resume.as_ref().map(|(_, state)| state);
        let timed = team.agree(in_time(config, &session, &validation.set, at, begun).map_err(Failure::from), &[])?;
        let timed = team.steps(timed, warmup)?;
        let config = &timed;
        let drawn = drawn(config, corpus)?;
        if !json {
            if regions {
                tell!("{}", plan.ledger().trim_end());
            }
            tell!("{}", fitting(plan.summary(config).trim_end(), &io::stderr()));
            tell_of_training(config, corpus, &drawn)?;
            tell_within(&validation.describe(overlap));
            session.laid.introduction.iter().for_each(|line| tell!("{line}"));
            tell_of_ranks(config);
        }
        within_budget(config, &plan, &mut session)?;
        say_warnings(&mut session);
        let fresh = !directory::holds_run(dir);
        let is_resumed = resume.is_some();
        team.led(|| {
            if is_resumed {
                return Ok(());
            }
            let mut written = serde_json::to_value(&plan).map_err(work)?;
            written["algorithms"] = json!(session.algorithms());
            let text = serde_json::to_string_pretty(&written).map_err(work)?;
            directory::create(dir, config, &text, corpus.tokenizer.as_ref()).map_err(work)
        })?;
        team.led(|| checkpoint::sweep(dir).map_err(|e| DeviceError::from(e).into()))?;
        let stop = team.stop()?;
        if let Some(was) = resume.as_ref().and_then(|(from, _)| checkpoint::other_states(from, &session.laid.lasting)) {
            tell_of_converted_states(config, was);
        }
        let trainer = Trainer::new(config, session, corpus, &validation.set, dir, resume, model_config, stop, begun);
        let trainer = team.agree(trainer.map_err(Failure::from), &[]);
        if trainer.is_err() && fresh && team.leads() {
            directory::discard(dir);
        }
        let trainer = trainer?;
        let mut told = vec![name::spelled(&corpus.order(config)).into_owned()];
        told.extend(drawn);
        told.push(validation.describe(overlap));
        told.extend(coverage::of_run(corpus, &validation.set, config));
        let began = on_device(config).and_then(|device| team.led(|| began(&device, dir, trainer.step(), told)));
        if began.is_err() && fresh && team.leads() {
            directory::discard(dir);
        }
        began?;
        tell_of_doubts(config, tokenizer.vocab_size());
        let course = course(config, corpus, trainer.step())?;
        if !json {
            coverage::of_run(corpus, &validation.set, config).iter().for_each(|line| tell_within(line));
            tell_of_the_run(dir, &course, instead_of);
            if let Some(bits) = expected(config, config.steps, corpus, &validation.set) {
                tell_within(&format!(
                    "  such a run ends at about {bits:.2} bits a byte of English technical prose, at 0.6 to 1.3 times that of \
                     other text; see docs/scaling.md"
                ));
            }
        }
        // On a GPU the plan is about the GPU's memory, which is all allocated by now.
        let planned = (!config.device.starts_with("cuda")).then(|| plan.until_trained());
        let progress = Progress::start(course, planned, json || !team.leads());
        let live = bound.and_then(|bound| served(bound, dir, config));
        let mut lines = Lines::default();
        let ran = trainer.run(&mut Watched { lines: json.then_some(&mut lines), live: live.as_ref() }, &progress);
        drop(progress);
        let (outcome, mut session) = ran.map_err(|e| match e {
            TrainError::Here { .. } => work(e),
            TrainError::Failed { .. } => team.all_know(work(e)),
            TrainError::Interrupted { .. } => team.all_know(Failure::Interrupted(e.to_string())),
        })?;
        if !team.leads() {
            return Ok(());
        }
        end_with_the_reader()?;
        tell_of_flaws(corpus);
        let sample = if json {
            Ok(String::new())
        } else {
            let tokenizer = Arc::clone(&corpus.tokenizer);
            Samples::new(config, &session, tokenizer, &validation.set).draw(&mut session)
        };
        let usage = Usage::of(&plan, &outcome, &mut session);
        // The baselines use the memory that the session frees.
        drop(session);
        let said = lines.complete().and_then(|()| {
            // N-gram counts cannot distinguish answers from prompts, or sources.
            let most = match corpus.has_conversations() || corpus.shares().is_some() {
                true => 0,
                false => config.baseline_tokens,
            };
            let baselines =
                (most > 0).then(|| corpus.baselines(&validation.set, most, machine.for_baselines(config, &plan)));
            let baselines = baselines.transpose().map_err(work)?;
            let expected = expected(config, outcome.steps, corpus, &validation.set);
            let beside = Beside { validation: &validation.set, overlap, baselines, expected };
            let result = result(config, corpus, dir, &beside, &outcome, &usage);
            let sample = sample.as_ref().ok().filter(|sample| !sample.is_empty()).cloned();
            ended(corpus, dir, outcome.steps, &result, sample)?;
            if let Some(line) = waited(config, corpus, &outcome) {
                tell!("{}: {line}", name::called());
            }
            if json { say!("{result}") } else { report(config, corpus, dir, &beside, &outcome, &usage) }
        });
        said.map_err(|e| work(format_args!("{e}; the run is saved in {}", dir.display())))?;
        let sample = sample.map_err(work)?;
        if !json {
            say!("\n{}", within(&sample, &io::stdout()))?;
        }
        Ok(())
    }
}

/// What the plan does not say of a run: its attention, its device, the order of its data.
fn tell_of_training(config: &Config, corpus: &Corpus, drawn: &[String]) -> Result<(), Failure> {
    if let Some(line) = config.attention_kept() {
        tell_within(&line);
    }
    tell!("{}", on_device(config)?);
    tell_within(&name::spelled(&corpus.order(config)));
    corpus.packing().map_err(request)?.iter().chain(drawn).for_each(|line| tell_within(&name::spelled(line)));
    Ok(())
}

/// The checkpoint has the optimizer's states in another type than the run.
fn tell_of_converted_states(config: &Config, was: &str) {
    let (here, rounded) = match config.states {
        States::F32 => ("f32", ""),
        States::EightBits => ("8bit", ", rounded to its codes"),
    };
    tell!(
        "{}: the checkpoint has the optimizer's states in {was}, this run in {here}: they are converted{rounded}",
        name::called()
    );
}

/// Settings that a user may not have meant.
fn tell_of_doubts(config: &Config, ids: u32) {
    if config.lr == 0.0 {
        tell!(
            "{}: --lr 0: no weight changes, so nothing is learnt; leave it away for the preset's rate",
            name::called()
        );
    }
    let lines = [config.unused_vocabulary(ids), config.unfinished_warmup(), wants_a_rate(config)];
    lines.iter().flatten().for_each(|line| tell!("{}: {line}", name::called()));
}

/// The configuration with about as many steps as fit in its time limit, if it has one and its rate is not decaying yet.
/// A resumed run has the state `at`. The command began at `begun`.
fn in_time(
    config: &Config,
    session: &Session,
    validation: &ValidationSet,
    at: Option<&TrainerState>,
    begun: Instant,
) -> Result<Config, ConfigError> {
    let before = at.and_then(|state| state.timed).unwrap_or_default();
    if config.time.is_none() || before.fall.is_some() {
        return Ok(config.clone());
    }
    let steps = session.steps_in_time(config, validation, before.seconds + begun.elapsed().as_secs_f64())?;
    Ok(Config { steps: at.map_or(0, |state| state.step) + steps, ..config.clone() })
}

/// The run's length; the session begins after `first` steps.
fn course(config: &Config, corpus: &Corpus, first: u64) -> Result<Course, Failure> {
    // In other cases tokens would be counted by reading all text.
    let alone = corpus.shards().filter(|_| corpus.shares().is_none());
    let epoch = alone.map(|_| corpus.training_tokens()).transpose().map_err(request)?;
    Ok(Course { steps: config.steps, first, stages: config.stages(), epoch })
}

/// What the run draws from each source of a mixture, for people, one line each.
fn drawn(config: &Config, corpus: &Corpus) -> Result<Vec<String>, Failure> {
    let stages = config.stages();
    let tokens = Curriculum::new(&stages).map_err(request)?.tokens(config.steps);
    let line = |one: &Drawn| {
        let Drawn { name, share, tokens, drawn } = one;
        let (share, passes) = (100.0 * share, one.passes());
        format!(
            "  {share:.2} % {name}: {} of the run's tokens, {passes:.2} passes over its {}",
            short(*drawn),
            short(*tokens)
        )
    };
    Ok(corpus.drawn(tokens).map_err(request)?.iter().map(line).collect())
}

/// Reports the directory and the length of a run. `instead_of` is the preset's number of steps, if the text reduced it.
fn tell_of_the_run(dir: &Path, course: &Course, instead_of: Option<u64>) {
    let resumed =
        if course.first > 0 { format!(", resumed after step {}", grouped(course.first)) } else { String::new() };
    tell_within(&format!("run {}{resumed}: {}", dir.display(), course.length()));
    if let Some(steps) = instead_of {
        let steps = counted(steps, "step");
        tell_within(&format!(
            "  {MOST_EPOCHS} epochs of this text, not the preset's {steps}; --steps or --epochs asks for more"
        ));
    }
}

/// A description of the run's device.
fn on_device(config: &Config) -> Result<String, Failure> {
    Ok(match config.device()? {
        Device::Cuda(_) => format!("device {}: {}", config.device, gpu_of(config)?),
        _ => format!("device {}, {} threads", config.device, config.threads),
    })
}

/// The GPU of the run; empty if it runs on none.
fn gpu_of(config: &Config) -> Result<String, Failure> {
    let Device::Cuda(number) = config.device()? else { return Ok(String::new()) };
    let gpu = gpus().into_iter().nth(number as usize).map(|gpu| {
        let (major, minor) = gpu.capability;
        format!("{}, compute capability {major}.{minor}, {}", gpu.name, human_bytes(gpu.bytes))
    });
    Ok(gpu.unwrap_or_default())
}

/// Refuses a run that exceeds the requested budget with the memory outside the arena, as measured on the GPU. Memory of
/// other programs cannot be distinguished from that of the context: for both together at most the plan's number counts.
pub(super) fn within_budget(config: &Config, plan: &Plan, session: &mut Session) -> Result<(), Failure> {
    let (Some(gpu), Some(budget), None) = (session.device.gpu(), config.budget, &config.gpu) else { return Ok(()) };
    let lines = gpu.outside().iter().enumerate();
    let outside: u64 =
        lines.map(|(i, (_, bytes))| if i == 0 { plan.outside_arena_bytes.min(*bytes) } else { *bytes }).sum();
    let needed = gpu.arena_bytes() + outside;
    if needed <= budget {
        return Ok(());
    }
    Err(request(format!(
        "this run takes {} on this GPU ({} in the arena, {} outside it as measured), more than the --budget of {}; \
         lower --batch-size, or raise it",
        human_bytes(needed),
        human_bytes(gpu.arena_bytes()),
        human_bytes(outside),
        human_bytes(budget)
    )))
}
