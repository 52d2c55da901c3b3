//! Compares the output of a Generator on a GPU, where many tokens are chosen at a time, with the CPU, where they are
//! chosen one by one.

use std::ops::ControlFlow;

use capful_core::device::Rates;
use capful_core::generate::Sampler;
use capful_core::memory::Role;
use capful_core::random::Random;

use crate::config::{Config, RawConfig};
use crate::device::Storage as _;
use crate::plan::{Laid, Sections};
use crate::run::Session;
use crate::run::generate::{End, Generator};
use capful_witness::lay::encode;

const CONTEXT: u32 = 128;
const IDS: usize = 260;
const PROMPT: [u32; 3] = [3, 5, 8];

/// A small NeuroGen, ready to generate. Its decoder has random values, so that its output depends on its state.
fn session(device: &str) -> Session {
    let text = format!(
        "device = '{device}'\nthreads = 1\nprecision = 'f32'\npreset = 'neurogen-tiny'\nvocab_size = {IDS}\n\
         batch_size = 1\nseq_len = 16\n[model]\ncontext = {CONTEXT}"
    );
    let raw: RawConfig = toml::from_str(&text).expect("TOML");
    let config = Config::resolve(raw).expect("a configuration");
    let profile = crate::plan::profile(&config).expect("a device");
    let sections = Sections { decoding: Some(CONTEXT), ..Sections::none(&config) };
    let family = config.family();
    let laid = Laid::new(&family, &profile, Rates::ONE, &sections).and_then(|laid| laid.recorded(&family, &profile));
    let mut session = Session::start(laid.expect("a plan"), &profile, Some(1), IDS as u32).expect("a session");
    let lasting = session.laid.lasting.clone();
    let decoder = lasting.iter().find(|e| e.slot.name == "decoder.weight" && e.slot.role == Role::Weight);
    let region = decoder.expect("a decoder").place.at(0);
    let random = Random::new(1, 1);
    let drawn: Vec<f32> = (0..region.elements()).map(|i| random.normal(i)).collect();
    session.device.write(region, &encode(region.dtype, &drawn)).expect("in the arena");
    session
}

/// The generated tokens after a prompt up to `eos`, then after the end token and a second prompt, fed as in a chat:
/// only the tokens that were not fed yet, or all tokens from the beginning.
fn said(session: &mut Session, sampler: &Sampler, eos: Option<u32>) -> [Vec<u32>; 2] {
    let mut generator = Generator::new(CONTEXT, IDS as u32, 1);
    let mut fed = PROMPT.to_vec();
    let mut said = [(); 2].map(|()| Vec::new());
    for (n, said) in said.iter_mut().enumerate() {
        let unread = fed[generator.position()..].to_vec();
        let mut visit = |id| {
            said.push(id);
            ControlFlow::Continue(())
        };
        let end = generator.run(session, sampler, &unread, 40, IDS, eos.as_slice(), &mut visit).expect("tokens");
        assert_eq!(end, eos.filter(|_| n == 0).map_or(end, End::Eos));
        fed.extend(&*said);
        fed.extend(eos.filter(|eos| end == End::Eos(*eos)).into_iter().chain([11, 13]));
    }
    said
}

#[test]
fn a_state_does_not_stay_behind_the_end_token() {
    capful_driver::load_or(Some(capful_kernels::STAND_IN)).expect("a driver or the stand-in");
    let [mut cpu, mut gpu] = ["cpu", "cuda"].map(session);
    for (temperature, top_k, top_p) in [(0.0, 0, 1.0), (0.8, 0, 0.95), (1.5, 40, 1.0)] {
        let sampler = Sampler { temperature, top_k, top_p, repetition_penalty: 1.0 };
        let [free, _] = said(&mut cpu, &sampler, None);
        // An end token in the middle of a launch of sixteen tokens.
        let eos =
            (3..12).find(|at| !free[..*at].contains(&free[*at])).map(|at| free[at]).expect("one that comes early");
        let [expected, found] = [&mut cpu, &mut gpu].map(|session| said(session, &sampler, Some(eos)));
        assert_eq!(found, expected, "{sampler:?}");
        assert!(expected[1].len() > 2, "{expected:?}");
    }
}
