//! Signals as rows of tokens, for the dense layers that read them.

use crate::device::{Operand, Operation, OperationError};
use crate::memory::{Arena, Region};

/// `out[b, t, c] = signals[t + 1, first + c, b]`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Context {
    /// [T + 1, H, B].
    pub signals: Region,
    /// The first signal.
    pub first: u32,
    /// [B, T, C].
    pub out: Region,
}

impl Operation for Context {
    const NAME: &'static str = "context";
    const EXACT: bool = true;

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::read("signals", self.signals));
        visit(Operand::write("out", self.out).exact());
    }

    fn validate(&self) -> Result<(), OperationError> {
        let [_, batch, tokens, columns] = self.out.shape;
        let [_, slots, rows, streams] = self.signals.shape;
        self.expect(slots == tokens + 1 && streams == batch && self.first + columns <= rows, "signals")
    }

    fn flops(&self) -> u64 {
        0
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let [signals, mut out] = arena.views([Some(self.signals), Some(self.out)])?;
        let [_, batch, tokens, columns] = self.out.shape.map(|n| n as usize);
        let (signals, rows) = (signals.f32()?, self.signals.shape[2] as usize);
        for (i, out) in out.f32_mut()?.iter_mut().enumerate() {
            let (b, t, c) = (i / columns / tokens, i / columns % tokens, i % columns);
            *out = signals[((t + 1) * rows + self.first as usize + c) * batch + b];
        }
        Ok(())
    }
}

/// `signals_grad[t, first + c, b] += out_grad[b, t, c]`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ContextGrad {
    /// [B, T, C].
    pub out_grad: Region,
    /// [T, H, B].
    pub signals_grad: Region,
    /// The first signal.
    pub first: u32,
}

impl Operation for ContextGrad {
    const NAME: &'static str = "context_grad";
    const EXACT: bool = true;

    fn operands(&self, visit: &mut dyn FnMut(Operand)) {
        visit(Operand::read("out_grad", self.out_grad).exact());
        visit(Operand::update("signals_grad", self.signals_grad));
    }

    fn validate(&self) -> Result<(), OperationError> {
        let [_, batch, tokens, columns] = self.out_grad.shape;
        let [_, slots, rows, streams] = self.signals_grad.shape;
        self.expect(slots == tokens && streams == batch && self.first + columns <= rows, "signals_grad")
    }

    fn flops(&self) -> u64 {
        0
    }

    fn reference(&self, arena: &mut Arena<'_>) -> Result<(), OperationError> {
        let [out_grad, mut signals_grad] = arena.views([Some(self.out_grad), Some(self.signals_grad)])?;
        let [_, batch, tokens, columns] = self.out_grad.shape.map(|n| n as usize);
        let rows = self.signals_grad.shape[2] as usize;
        for (i, grad) in out_grad.f32()?.iter().enumerate() {
            let (b, t, c) = (i / columns / tokens, i / columns % tokens, i % columns);
            signals_grad.f32_mut()?[(t * rows + self.first as usize + c) * batch + b] += grad;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::Bench;

    #[test]
    fn rows_are_the_signals_of_their_token_and_gradients_go_back() {
        let mut b = Bench::<512>::new();
        let signals = b.normal([1, 4, 5, 2], 1, 1.0);
        let out = b.poison([1, 2, 3, 2]);
        let op = Context { signals, first: 2, out };
        b.run(op);
        let expected = b.get(signals)[(3 * 5 + 3) * 2 + 1];
        assert_eq!(b.get(out)[(3 + 2) * 2 + 1], expected);
        let weights = b.normal([1, 2, 3, 2], 2, 1.0);
        let all = b.values([1, 4, 5, 2], &[0.0; 40]);
        let signals_grad = Region { offset: all.offset + 40, shape: [1, 3, 5, 2], ..all };
        b.run(ContextGrad { out_grad: weights, signals_grad, first: 2 });
        b.check_gradient(op, signals, all, out, weights);
    }
}
