//! A vector of fixed capacity, stored inline, so that a rule can be parsed repeatedly without allocating.

/// At most `N` values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SmallVec<T, const N: usize> {
    items: [Option<T>; N],
    count: usize,
}

impl<T, const N: usize> SmallVec<T, N> {
    /// Creates an empty vector.
    pub const fn new() -> Self {
        Self { items: [const { None }; N], count: 0 }
    }

    /// Adds a value.
    ///
    /// # Errors
    /// The value, if the vector already has `N` values.
    pub fn push(&mut self, item: T) -> Result<(), T> {
        match self.items.get_mut(self.count) {
            Some(place) => {
                *place = Some(item);
                self.count += 1;
                Ok(())
            }
            None => Err(item),
        }
    }

    /// The values in order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.items[..self.count].iter().flatten()
    }
}

impl<T, const N: usize> Default for SmallVec<T, N> {
    fn default() -> Self {
        Self::new()
    }
}
