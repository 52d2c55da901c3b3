//! Which rank a process is, from what its launcher put into the environment.

use super::PeerError;

/// A process among those that a launcher began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rank {
    /// Its number.
    pub rank: u32,
    /// How many there are.
    pub count: u32,
    /// Its number on this machine.
    pub local: u32,
}

/// The variables of a launcher: rank, count, and number on this machine.
struct Launcher {
    name: &'static str,
    variables: [&'static str; 3],
}

const LAUNCHERS: [Launcher; 4] = [
    Launcher { name: "torchrun", variables: ["RANK", "WORLD_SIZE", "LOCAL_RANK"] },
    Launcher {
        name: "mpirun",
        variables: ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"],
    },
    Launcher { name: "mpirun", variables: ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"] },
    Launcher { name: "srun", variables: ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"] },
];

impl Launcher {
    /// What it says, if it says anything.
    fn rank(&self, variable: &dyn Fn(&str) -> Option<String>) -> Result<Option<Rank>, PeerError> {
        let Launcher { name, variables } = self;
        let read = |name: &'static str| -> Result<Option<u32>, PeerError> {
            let Some(text) = variable(name) else { return Ok(None) };
            let number = text.trim().parse();
            number.map(Some).map_err(|_| PeerError(format!("{name} is '{text}'; {} sets it to a number", self.name)))
        };
        let [rank, count, local] = [read(variables[0])?, read(variables[1])?, read(variables[2])?];
        let (rank, count) = match (rank, count) {
            (Some(rank), Some(count)) => (rank, count),
            (None, None) => return Ok(None),
            (given, _) => {
                let [there, missing] = if given.is_some() { [0, 1] } else { [1, 0] };
                return Err(PeerError(format!(
                    "{} is set and {} is not; start ranks with {name}, or unset it",
                    variables[there], variables[missing]
                )));
            }
        };
        if rank >= count {
            return Err(PeerError(format!(
                "{} is {rank} and {} is {count}; ranks are numbered from 0 to one less than their count",
                variables[0], variables[1]
            )));
        }
        // Where nothing says it, all ranks are taken to be on one machine.
        Ok(Some(Rank { rank, count, local: local.unwrap_or(rank) }))
    }
}

/// The rank that the environment describes; nothing where a process was started by itself. `variable` gives the value of a
/// variable that is set.
///
/// # Errors
/// Variables that are missing, no numbers or contradict each other.
pub fn rank(variable: &dyn Fn(&str) -> Option<String>) -> Result<Option<Rank>, PeerError> {
    // Slurm sets its variables for a batch script as well, which is no rank; only a step of srun has a number.
    let in_step = variable("SLURM_STEP_ID").is_some_and(|step| step.trim().parse::<u32>().is_ok());
    let mut found: Option<(&Launcher, Rank)> = None;
    for launcher in LAUNCHERS.iter().filter(|launcher| launcher.name != "srun" || in_step) {
        let Some(rank) = launcher.rank(variable)? else { continue };
        // A launcher that another one started as one task of its own says nothing of ranks.
        let Some((before, other)) = found.filter(|(_, other)| other.count > 1 && rank.count > 1) else {
            found = found.filter(|(_, other)| other.count > 1).or(Some((launcher, rank)));
            continue;
        };
        if (other.rank, other.count) != (rank.rank, rank.count) {
            return Err(PeerError(format!(
                "{} says rank {} of {} and {} says rank {} of {}; start the run with one of them",
                before.variables[0], other.rank, other.count, launcher.variables[0], rank.rank, rank.count
            )));
        }
    }
    Ok(found.map(|(_, rank)| rank).filter(|rank| rank.count > 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Result<Option<Rank>, String> {
        let variable = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        rank(&variable).map_err(|e| e.to_string())
    }

    fn some(rank: u32, count: u32, local: u32) -> Result<Option<Rank>, String> {
        Ok(Some(Rank { rank, count, local }))
    }

    #[test]
    fn every_launcher_is_understood() {
        assert_eq!(of(&[]), Ok(None));
        let torchrun = [
            ("RANK", "5"),
            ("WORLD_SIZE", "8"),
            ("LOCAL_RANK", "1"),
            ("LOCAL_WORLD_SIZE", "4"),
            ("MASTER_ADDR", "node"),
            ("MASTER_PORT", "29500"),
        ];
        assert_eq!(of(&torchrun), some(5, 8, 1));
        let openmpi =
            [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_LOCAL_RANK", "1")];
        assert_eq!(of(&openmpi), some(1, 2, 1));
        assert_eq!(of(&[("PMI_RANK", "2"), ("PMI_SIZE", "3")]), some(2, 3, 2));
        let srun = [("SLURM_PROCID", "9"), ("SLURM_NTASKS", "16"), ("SLURM_LOCALID", "1"), ("SLURM_STEP_ID", "0")];
        assert_eq!(of(&srun), some(9, 16, 1));
        // A batch script of 16 tasks is no rank of 16, and one process of a launcher is alone.
        assert_eq!(of(&srun[..3]), Ok(None));
        assert_eq!(of(&[("SLURM_STEP_ID", "batch"), srun[0], srun[1]]), Ok(None));
        assert_eq!(of(&[("RANK", "0"), ("WORLD_SIZE", "1")]), Ok(None));
        // mpirun within a task of srun, and srun that starts MPI's ranks itself.
        let alone = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1"), ("SLURM_STEP_ID", "0")];
        assert_eq!(of(&[&openmpi[..], &alone].concat()), some(1, 2, 1));
        assert_eq!(of(&[&srun[..], &[("PMI_RANK", "9"), ("PMI_SIZE", "16")]].concat()), some(9, 16, 9));
    }

    #[test]
    fn what_is_missing_wrong_or_contradicts_is_said_in_a_line() {
        for (variables, says) in [
            (&[("WORLD_SIZE", "2")][..], "WORLD_SIZE is set and RANK is not; start ranks with torchrun"),
            (&[("RANK", "2")], "RANK is set and WORLD_SIZE is not"),
            (&[("RANK", "two"), ("WORLD_SIZE", "2")], "RANK is 'two'"),
            (&[("RANK", "2"), ("WORLD_SIZE", "2")], "RANK is 2 and WORLD_SIZE is 2"),
            (&[("PMI_SIZE", "-1"), ("PMI_RANK", "0")], "PMI_SIZE is '-1'"),
            (
                &[("RANK", "0"), ("WORLD_SIZE", "4"), ("PMI_RANK", "1"), ("PMI_SIZE", "2")],
                "RANK says rank 0 of 4 and PMI_RANK says rank 1 of 2",
            ),
        ] {
            let message = of(variables).unwrap_err();
            assert!(message.contains(says) && !message.contains('\n'), "{message}");
        }
    }
}
