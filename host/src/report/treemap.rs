//! A treemap: areas proportional to numbers, as close to squares as possible.
//!
//! Bruls, Huizing, van Wijk: Squarified Treemaps, 2000.

/// A rectangle.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Rect {
    /// Left.
    pub x: f64,
    /// Top.
    pub y: f64,
    /// Width.
    pub w: f64,
    /// Height.
    pub h: f64,
}

impl Rect {
    fn area(&self) -> f64 {
        self.w * self.h
    }
}

/// The largest aspect ratio in a row of `areas` along a side of length `side`.
fn worst(areas: &[f64], side: f64) -> f64 {
    let sum: f64 = areas.iter().sum();
    let depth = sum / side;
    areas.iter().map(|area| (area / depth / depth).max(depth * depth / area)).fold(1.0, f64::max)
}

/// Divides `room` into rectangles with areas proportional to the `weights`, which must be in falling order. A weight
/// that is not above 0 gets no area.
pub fn squarified(weights: &[f64], room: Rect) -> Vec<Rect> {
    let total: f64 = weights.iter().map(|weight| weight.max(0.0)).sum();
    let area = |weight: &f64| if total > 0.0 { room.area() * weight.max(0.0) / total } else { 0.0 };
    let areas: Vec<f64> = weights.iter().map(area).collect();
    let mut rects = Vec::with_capacity(weights.len());
    let (mut from, mut room) = (0, room);
    while from < areas.len() {
        if areas[from] <= 0.0 {
            rects.push(Rect { w: 0.0, h: 0.0, ..room });
            from += 1;
            continue;
        }
        let side = room.w.min(room.h);
        let mut to = from + 1;
        while to < areas.len() && areas[to] > 0.0 && worst(&areas[from..=to], side) <= worst(&areas[from..to], side) {
            to += 1;
        }
        let row = &areas[from..to];
        let sum: f64 = row.iter().sum();
        let wide = room.w >= room.h;
        // The last row takes all remaining room, including what rounding has left.
        let last = to == areas.len() || areas[to..].iter().all(|area| *area <= 0.0);
        let depth = match (last, wide) {
            (true, true) => room.w,
            (true, false) => room.h,
            (false, _) => sum / side,
        };
        let mut along = 0.0;
        for area in row {
            let length = side * area / sum;
            rects.push(match wide {
                true => Rect { x: room.x, y: room.y + along, w: depth, h: length },
                false => Rect { x: room.x + along, y: room.y, w: length, h: depth },
            });
            along += length;
        }
        room = match wide {
            true => Rect { x: room.x + depth, w: (room.w - depth).max(0.0), ..room },
            false => Rect { y: room.y + depth, h: (room.h - depth).max(0.0), ..room },
        };
        from = to;
    }
    rects
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ROOM: Rect = Rect { x: 3.0, y: 5.0, w: 600.0, h: 250.0 };

    fn overlap(a: &Rect, b: &Rect) -> f64 {
        let width = (a.x + a.w).min(b.x + b.w) - a.x.max(b.x);
        let height = (a.y + a.h).min(b.y + b.h) - a.y.max(b.y);
        width.max(0.0) * height.max(0.0)
    }

    proptest! {
        #[test]
        fn areas_are_in_proportion_cover_all_and_do_not_overlap(
            mut weights in prop::collection::vec(prop_oneof![Just(0.0), 1e-3..1e3f64, 1e6..1e9f64], 1..60)
        ) {
            weights.sort_by(|a, b| b.total_cmp(a));
            prop_assume!(weights[0] > 0.0);
            let rects = squarified(&weights, ROOM);
            prop_assert_eq!(rects.len(), weights.len());
            let total: f64 = weights.iter().sum();
            for (rect, weight) in rects.iter().zip(&weights) {
                let expected = ROOM.area() * weight / total;
                prop_assert!((rect.area() - expected).abs() < 1e-6 * ROOM.area(), "{rect:?} {expected}");
                prop_assert!(rect.x >= ROOM.x - 1e-6 && rect.x + rect.w <= ROOM.x + ROOM.w + 1e-6);
                prop_assert!(rect.y >= ROOM.y - 1e-6 && rect.y + rect.h <= ROOM.y + ROOM.h + 1e-6);
            }
            let covered: f64 = rects.iter().map(Rect::area).sum();
            prop_assert!((covered - ROOM.area()).abs() < 1e-6 * ROOM.area());
            for (i, a) in rects.iter().enumerate() {
                for b in &rects[i + 1..] {
                    prop_assert!(overlap(a, b) < 1e-6 * ROOM.area(), "{a:?} {b:?}");
                }
            }
        }
    }

    #[test]
    fn equal_parts_are_near_to_squares() {
        for rect in squarified(&[1.0; 12], ROOM) {
            let ratio = (rect.w / rect.h).max(rect.h / rect.w);
            assert!(ratio < 2.0, "{rect:?}");
        }
        assert!(squarified(&[], ROOM).is_empty());
        assert_eq!(squarified(&[0.0, 0.0], ROOM).iter().map(Rect::area).sum::<f64>(), 0.0);
    }
}
