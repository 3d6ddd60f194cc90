//! A list of values with stable keys. The key of a removed value never finds a later value.

#[derive(Debug)]
pub struct Slab<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Place<T> {
    value: Option<T>,
    /// How often the place was emptied.
    generation: u32,
}

impl<T> Slab<T> {
    pub const fn new() -> Slab<T> {
        Slab { places: Vec::new(), free: Vec::new() }
    }

    pub fn insert(&mut self, value: T) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place { value: None, generation: 0 });
            (self.places.len() - 1) as u32
        });
        let place = &mut self.places[index as usize];
        place.value = Some(value);
        u64::from(place.generation) << 32 | u64::from(index)
    }

    pub fn get(&self, key: u64) -> Option<&T> {
        let place = self.places.get(key as u32 as usize)?;
        if u64::from(place.generation) == key >> 32 { place.value.as_ref() } else { None }
    }

    pub fn remove(&mut self, key: u64) -> Option<T> {
        self.get(key)?;
        let place = &mut self.places[key as u32 as usize];
        place.generation = place.generation.wrapping_add(1);
        self.free.push(key as u32);
        place.value.take()
    }

    /// Removes all values.
    pub fn take_all(&mut self) -> Vec<T> {
        self.free.clear();
        std::mem::take(&mut self.places).into_iter().filter_map(|place| place.value).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_key_does_not_find_the_value_that_took_its_place() {
        let mut slab = Slab::new();
        let (first, second) = (slab.insert('a'), slab.insert('b'));
        assert_eq!(slab.remove(first), Some('a'));
        assert_eq!(slab.remove(first), None);
        let third = slab.insert('c');
        assert_eq!(third as u32, first as u32);
        assert_eq!([first, second, third].map(|key| slab.get(key).copied()), [None, Some('b'), Some('c')]);
        assert_eq!(slab.take_all(), ['c', 'b']);
    }
}
