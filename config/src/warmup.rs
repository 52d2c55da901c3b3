//! The default number of warm-up steps.

use super::{Config, Preset, RawConfig};

/// The preset's number, or the same share of a shorter run; at least 1 % of the run, and at least one step.
fn of(preset: &RawConfig, steps: u64) -> u64 {
    let share = |own: u64, of: u64| (u128::from(steps) * u128::from(own) / u128::from(of.max(1))) as u64;
    let own = match (preset.warmup, preset.steps) {
        (Some(own), Some(of)) => own.min(share(own, of)),
        (own, _) => own.unwrap_or(0),
    };
    own.max(steps / 100).max(1)
}

impl Config {
    /// The default number of warm-up steps of this run.
    pub fn default_warmup(&self) -> u64 {
        let preset = Preset::find(&self.preset).map_or_else(RawConfig::default, Preset::raw);
        of(&preset, self.steps).min(self.steps_before_decay())
    }

    /// A line for people if the run ends before its learning rate has risen.
    pub fn unfinished_warmup(&self) -> Option<String> {
        let Config { warmup, steps, .. } = *self;
        // With a warm-up of one step, the first step already has the full rate.
        (warmup >= steps && warmup > 1).then(|| {
            format!("a warm-up of {warmup} steps takes all {steps} of the run, so its learning rate only rises; lower --warmup")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presets;

    fn resolve(text: &str) -> Config {
        Config::resolve(toml::from_str(text).unwrap()).unwrap()
    }

    #[test]
    fn a_preset_of_its_own_length_has_its_own_warm_up() {
        for preset in presets() {
            let own = preset.raw();
            let config = resolve(&format!("preset = '{}'", preset.name));
            assert_eq!(config.steps, own.steps.unwrap());
            assert_eq!(config.warmup, own.warmup.unwrap_or(config.steps / 100), "{}", preset.name);
        }
    }

    #[test]
    fn the_warm_up_is_a_small_share_of_any_run() {
        // Llama-tiny: 50 of 1000. Neurogen-tiny: 30 of 2000. Pythia-14m: no warm-up in the preset.
        for (preset, steps, warmup) in [
            ("llama-tiny", 1, 1),
            ("llama-tiny", 30, 1),
            ("llama-tiny", 500, 25),
            ("llama-tiny", 999, 49),
            ("llama-tiny", 4000, 50),
            ("llama-tiny", 20_000, 200),
            // A decay that begins earlier shortens the warm-up.
            ("quick-tiny", 1, 0),
            ("quick-tiny", 2, 1),
            ("neurogen-tiny", 200, 3),
            ("pythia-14m", 50, 1),
            ("pythia-14m", 200_000, 2000),
        ] {
            let config = resolve(&format!("preset = '{preset}'\nsteps = {steps}"));
            assert_eq!((config.warmup, config.unfinished_warmup()), (warmup, None), "{preset} {steps}");
            // Epochs become steps later.
            let counted = Config { steps, ..resolve(&format!("preset = '{preset}'\nepochs = 1")) };
            assert_eq!(counted.default_warmup(), warmup, "{preset} {steps}");
        }
        let given = resolve("preset = 'llama-tiny'\nsteps = 30\nwarmup = 30");
        assert_eq!(given.warmup, 30);
        let line = given.unfinished_warmup().unwrap();
        assert!(line.contains("30 steps") && line.contains("--warmup"), "{line}");
        assert!(resolve("preset = 'pythia-tiny'\nsteps = 30\nwarmup = 29").unfinished_warmup().is_none());
        // The largest number of steps that can be written.
        assert_eq!(resolve("preset = 'llama-tiny'\nsteps = 9223372036854775807").warmup, i64::MAX as u64 / 100);
    }
}
