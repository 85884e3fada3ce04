//! Lists that mostly have one element.

/// The first element lies in place, and is found without asking where it lies. The others are allocated.
#[derive(Debug)]
pub(super) struct Few<T> {
    first: Option<T>,
    /// Empty without a first one.
    rest: Vec<T>,
}

impl<T> Few<T> {
    pub(super) const fn new() -> Few<T> {
        Few { first: None, rest: Vec::new() }
    }

    pub(super) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.len()
    }

    /// The element at this place, which must be there.
    pub(super) fn at(&self, at: usize) -> &T {
        match at.checked_sub(1) {
            None => self.first.as_ref().expect("there is a first one"),
            Some(at) => &self.rest[at],
        }
    }

    /// The same, to change.
    pub(super) fn at_mut(&mut self, at: usize) -> &mut T {
        match at.checked_sub(1) {
            None => self.first.as_mut().expect("there is a first one"),
            Some(at) => &mut self.rest[at],
        }
    }

    pub(super) fn push(&mut self, element: T) {
        match self.first {
            None => self.first = Some(element),
            Some(_) => self.rest.push(element),
        }
    }

    pub(super) fn pop(&mut self) -> Option<T> {
        self.rest.pop().or_else(|| self.first.take())
    }

    /// Removes the element at this place, which must be there. The last one takes its place.
    pub(super) fn swap_remove(&mut self, at: usize) -> T {
        match at.checked_sub(1) {
            None => {
                let last = self.rest.pop();
                core::mem::replace(&mut self.first, last).expect("there is a first one")
            }
            Some(at) => self.rest.swap_remove(at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Few;

    #[test]
    fn its_elements_are_where_those_of_a_vector_are() {
        let (mut few, mut model) = (Few::new(), Vec::new());
        for (number, step) in ["+", "+", "+", "-", "+", "-", "-", "-", "-", "+", "+", "+", "1", "0", "0", "+", "+"]
            .into_iter()
            .enumerate()
        {
            match step.parse() {
                Ok(at) => assert_eq!(few.swap_remove(at), model.swap_remove(at)),
                Err(_) if step == "+" => {
                    few.push(number);
                    model.push(number);
                }
                Err(_) => assert_eq!(few.pop(), model.pop()),
            }
            assert_eq!(few.len(), model.len());
            assert!((0..model.len()).all(|at| *few.at(at) == model[at] && *few.at_mut(at) == model[at]));
        }
        assert_eq!(few.len(), 2);
    }
}
