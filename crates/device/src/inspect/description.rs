//! Descriptions of endpoints, other objects and registration caches, which front ends register with the device.

use std::time::Instant;

use super::cache_view::CacheView;
use super::describe::{EndpointView, Objects};
use crate::device::Device;

/// Keeps a description registered until this value is dropped. When the drop returns, the function is not running and will not be
/// called again.
#[derive(Debug)]
#[must_use = "dropping this removes the description"]
pub struct Description {
    device: Device,
    number: u64,
}

impl Device {
    /// Registers the description of a front end's endpoint. `describe` runs in the engine thread or in [`Device::inspect`];
    /// it must return by the time that it gets as an argument, must not call the device, and must not drop the last handle
    /// of one of the device's objects.
    pub fn describe(
        &self,
        describe: impl Fn(Instant) -> EndpointView + Send + 'static,
    ) -> Description {
        Description {
            device: self.clone(),
            number: self.shared().descriptions.add(Box::new(describe)),
        }
    }
}

impl Device {
    /// Registers a description of a front end's other objects. `describe` adds a view of each, under the same rules as that
    /// of [`Device::describe`].
    pub fn describe_objects(
        &self,
        describe: impl Fn(Instant, &mut Objects) + Send + 'static,
    ) -> Description {
        let number = self.shared().descriptions.add_objects(Box::new(describe));
        Description {
            device: self.clone(),
            number,
        }
    }
}

impl Drop for Description {
    fn drop(&mut self) {
        // In a forked child the lock may be held by a thread that does not exist there.
        if !self.device.is_forked() {
            self.device.shared().descriptions.remove(self.number);
        }
    }
}

/// Keeps the description of a cache registered until this value is dropped. When the drop returns, the function is not running
/// and will not be called again.
#[derive(Debug)]
#[must_use = "dropping this removes the description"]
pub struct CacheDescription {
    device: Device,
    number: u64,
}

impl Device {
    /// Registers the description of a registration cache. `describe` runs in the engine thread or in [`Device::inspect`]; it must
    /// not wait for the program, and must not call the device.
    pub fn describe_cache(
        &self,
        describe: impl Fn() -> CacheView + Send + 'static,
    ) -> CacheDescription {
        CacheDescription {
            device: self.clone(),
            number: self.shared().caches.add(Box::new(describe)),
        }
    }
}

impl Drop for CacheDescription {
    fn drop(&mut self) {
        // As for `Description`.
        if !self.device.is_forked() {
            self.device.shared().caches.remove(self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::inspect::describe::{ENDPOINTS, OBJECTS, ObjectView};

    #[test]
    fn endpoints_are_shown_until_their_description_is_dropped() {
        let device = Device::open(Config::default()).unwrap();
        let view = |number| {
            move |_| EndpointView {
                number,
                ep_type: "test".to_owned(),
                name: None,
                traffic: None,
            }
        };
        let shown = || {
            let all = device.inspect().unwrap();
            let numbers: Vec<u32> = all.endpoints.iter().map(|ep| ep.number).collect();
            (numbers, all.endpoint_count)
        };
        let one = device.describe(view(1));
        let two = device.describe(view(2));
        assert_eq!(shown(), (vec![1, 2], 2));
        drop(one);
        assert_eq!(shown(), (vec![2], 1));
        let many: Vec<Description> = (0..ENDPOINTS as u32)
            .map(|number| device.describe(view(number)))
            .collect();
        let (numbers, count) = shown();
        assert_eq!((numbers.len(), count), (ENDPOINTS, ENDPOINTS + 1));
        drop((two, many));
        assert_eq!(shown(), (vec![], 0));
    }

    #[test]
    fn objects_are_shown_until_their_description_is_dropped() {
        let device = Device::open(Config::default()).unwrap();
        let view = |number: usize| ObjectView {
            kind: "EVD".to_owned(),
            name: format!("{number:#x}"),
            state: "idle".to_owned(),
        };
        let shown = || {
            let all = device.inspect().unwrap();
            (all.objects, all.object_count)
        };
        let one = device.describe_objects(move |_, all| all.add(|| view(1)));
        let many = device.describe_objects(move |_, all| {
            for number in 2..2 + OBJECTS {
                all.add(|| view(number));
            }
        });
        let (objects, count) = shown();
        assert_eq!((objects.len(), count), (OBJECTS, OBJECTS + 1));
        assert_eq!((&objects[0], &objects[9]), (&view(1), &view(10)));
        drop(many);
        assert_eq!(shown(), (vec![view(1)], 1));
        drop(one);
        assert_eq!(shown(), (vec![], 0));
    }

    #[test]
    fn a_cache_is_shown_until_its_description_is_dropped() {
        let device = Device::open(Config::default()).unwrap();
        let view = |hits| CacheView {
            hits,
            ..CacheView::default()
        };
        let one = device.describe_cache(move || view(1));
        let two = device.describe_cache(move || view(2));
        assert_eq!(device.inspect().unwrap().caches, [view(1), view(2)]);
        drop(one);
        assert_eq!(device.inspect().unwrap().caches, [view(2)]);
        drop(two);
        assert_eq!(device.inspect().unwrap().caches, []);
    }
}
