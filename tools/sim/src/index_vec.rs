//! A vector indexed only by ids of one kind.

use std::marker::PhantomData;
use std::ops::{Index, IndexMut, Range};

use crate::ids::Id;

/// Items by id.
#[derive(Clone, Debug)]
pub(crate) struct IndexVec<I, T> {
    items: Vec<T>,
    ids: PhantomData<fn(I)>,
}

impl<I: Id, T> IndexVec<I, T> {
    /// An empty vector.
    pub(crate) const fn new() -> Self {
        Self { items: Vec::new(), ids: PhantomData }
    }

    /// A vector of `count` items, each made from its id.
    pub(crate) fn from_fn(count: usize, of: impl FnMut(I) -> T) -> Self {
        (0..count).map(I::new).map(of).collect()
    }

    /// The number of items.
    #[inline]
    pub(crate) const fn len(&self) -> usize {
        self.items.len()
    }

    /// All ids in order. The iterator does not borrow the vector.
    #[inline]
    pub(crate) fn ids(&self) -> impl Iterator<Item = I> + use<I, T> {
        (0..self.items.len()).map(I::new)
    }

    /// All items in the order of their ids.
    #[inline]
    pub(crate) fn iter(&self) -> std::slice::Iter<'_, T> {
        self.items.iter()
    }

    /// The items of a range of ids.
    #[inline]
    pub(crate) fn range(&self, ids: Range<I>) -> &[T] {
        &self.items[ids.start.index()..ids.end.index()]
    }

    /// Returns the item of an id. If the vector is too short, it first grows with default items.
    pub(crate) fn entry(&mut self, id: I) -> &mut T
    where
        T: Clone + Default,
    {
        if self.items.len() <= id.index() {
            self.items.resize(id.index() + 1, T::default());
        }
        &mut self.items[id.index()]
    }
}

impl<I: Id, T: Clone> IndexVec<I, T> {
    /// A vector of `count` copies of an item.
    pub(crate) fn filled(item: T, count: usize) -> Self {
        Self { items: vec![item; count], ids: PhantomData }
    }
}

impl<I: Id, T> Index<I> for IndexVec<I, T> {
    type Output = T;

    #[inline]
    fn index(&self, id: I) -> &T {
        &self.items[id.index()]
    }
}

impl<I: Id, T> IndexMut<I> for IndexVec<I, T> {
    #[inline]
    fn index_mut(&mut self, id: I) -> &mut T {
        &mut self.items[id.index()]
    }
}

impl<I: Id, T> FromIterator<T> for IndexVec<I, T> {
    fn from_iter<A: IntoIterator<Item = T>>(items: A) -> Self {
        Self { items: items.into_iter().collect(), ids: PhantomData }
    }
}
