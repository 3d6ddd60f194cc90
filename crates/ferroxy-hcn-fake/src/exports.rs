//! The functions, as Microsoft documents them. All of them are called by our own program only, with valid pointers.

use std::ffi::c_void;

use windows_sys::Win32::System::Com::CoTaskMemAlloc;
use windows_sys::core::GUID;

use crate::forward::{self, Answer, call, listen, unlisten};

type Pointer = *mut c_void;
type Out = *mut *mut u16;

/// Defines the functions of one kind of object.
macro_rules! functions {
    ($enumerate:ident, $open:ident, $modify:ident, $query:ident, $delete:ident, $close:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "system" fn $enumerate(query: *const u16, ids: Out, record: Out) -> i32 {
            // SAFETY: the caller passes a text that ends with a zero, and places for texts.
            unsafe {
                returned(call(stringify!($enumerate), 0, "", &text(query)), None, Some(ids), Some(record))
            }
        }

        #[unsafe(no_mangle)]
        unsafe extern "system" fn $open(id: *const GUID, handle: *mut Pointer, record: Out) -> i32 {
            // SAFETY: as above.
            unsafe { returned(call(stringify!($open), 0, &guid(id), ""), Some(handle), None, Some(record)) }
        }

        #[unsafe(no_mangle)]
        unsafe extern "system" fn $modify(handle: Pointer, settings: *const u16, record: Out) -> i32 {
            // SAFETY: as above.
            unsafe {
                let answer = call(stringify!($modify), handle as usize as u64, "", &text(settings));
                returned(answer, None, None, Some(record))
            }
        }

        #[unsafe(no_mangle)]
        unsafe extern "system" fn $query(handle: Pointer, query: *const u16, found: Out, record: Out) -> i32 {
            // SAFETY: as above.
            unsafe {
                let answer = call(stringify!($query), handle as usize as u64, "", &text(query));
                returned(answer, None, Some(found), Some(record))
            }
        }

        #[unsafe(no_mangle)]
        unsafe extern "system" fn $delete(id: *const GUID, record: Out) -> i32 {
            // SAFETY: as above.
            unsafe { returned(call(stringify!($delete), 0, &guid(id), ""), None, None, Some(record)) }
        }

        #[unsafe(no_mangle)]
        unsafe extern "system" fn $close(handle: Pointer) -> i32 {
            call(stringify!($close), handle as usize as u64, "", "").code.cast_signed()
        }
    };
}

functions!(
    HcnEnumerateNetworks,
    HcnOpenNetwork,
    HcnModifyNetwork,
    HcnQueryNetworkProperties,
    HcnDeleteNetwork,
    HcnCloseNetwork
);
functions!(
    HcnEnumerateEndpoints,
    HcnOpenEndpoint,
    HcnModifyEndpoint,
    HcnQueryEndpointProperties,
    HcnDeleteEndpoint,
    HcnCloseEndpoint
);
functions!(
    HcnEnumerateLoadBalancers,
    HcnOpenLoadBalancer,
    HcnModifyLoadBalancer,
    HcnQueryLoadBalancerProperties,
    HcnDeleteLoadBalancer,
    HcnCloseLoadBalancer
);

#[unsafe(no_mangle)]
unsafe extern "system" fn HcnCreateEndpoint(
    network: Pointer,
    id: *const GUID,
    settings: *const u16,
    handle: *mut Pointer,
    record: Out,
) -> i32 {
    // SAFETY: as above.
    unsafe {
        let answer = call("HcnCreateEndpoint", network as usize as u64, &guid(id), &text(settings));
        returned(answer, Some(handle), None, Some(record))
    }
}

#[unsafe(no_mangle)]
unsafe extern "system" fn HcnCreateLoadBalancer(
    id: *const GUID,
    settings: *const u16,
    handle: *mut Pointer,
    record: Out,
) -> i32 {
    // SAFETY: as above.
    unsafe {
        let answer = call("HcnCreateLoadBalancer", 0, &guid(id), &text(settings));
        returned(answer, Some(handle), None, Some(record))
    }
}

#[unsafe(no_mangle)]
unsafe extern "system" fn HNSCall(method: *const u16, path: *const u16, _: *const u16, response: Out) -> i32 {
    // SAFETY: as above.
    unsafe {
        let asked = format!("{} {}", text(method), text(path));
        returned(call("HNSCall", 0, "", &asked), None, Some(response), None)
    }
}

/// Not a function of HNS: tests name the service that calls of this thread go to.
#[unsafe(no_mangle)]
unsafe extern "system" fn FerroxyFakeAddress(address: *const u16) -> i32 {
    // SAFETY: as above.
    forward::address(unsafe { text(address) });
    0
}

type Callback = unsafe extern "system" fn(u32, *const c_void, i32, *const u16);

#[unsafe(no_mangle)]
unsafe extern "system" fn HcnRegisterServiceCallback(
    callback: Callback,
    context: *const c_void,
    handle: *mut Pointer,
) -> i32 {
    let context = context as usize;
    let notify = move |number| {
        // SAFETY: the callback and its context live as long as the process, as the caller promises.
        unsafe { callback(number, context as *const c_void, 0, std::ptr::null()) }
    };
    let silence = Answer { code: forward::NOT_RUNNING, handle: 0, text: String::new() };
    // SAFETY: the caller passes a place for the handle.
    unsafe { returned(listen(notify).unwrap_or(silence), Some(handle), None, None) }
}

#[unsafe(no_mangle)]
unsafe extern "system" fn HcnUnregisterServiceCallback(handle: Pointer) -> i32 {
    const INVALID_HANDLE: u32 = 0x8007_0006;
    if unlisten(handle as usize) { 0 } else { INVALID_HANDLE.cast_signed() }
}

/// # Safety
/// The places are null or can be written.
unsafe fn returned(
    answer: Answer,
    handle: Option<*mut Pointer>,
    out: Option<Out>,
    record: Option<Out>,
) -> i32 {
    let Answer { code, handle: opened, text } = answer;
    if code != 0 {
        let words = format!("{{\"Success\":false,\"Error\":{text:?},\"ErrorCode\":{code}}}");
        if let Some(record) = record.filter(|_| !text.is_empty()) {
            // SAFETY: as promised by the caller.
            unsafe { *record = allocated(&words) };
        }
        return code.cast_signed();
    }
    if let Some(handle) = handle {
        // SAFETY: as promised by the caller.
        unsafe { *handle = opened as usize as Pointer };
    }
    if let Some(out) = out {
        // SAFETY: as promised by the caller.
        unsafe { *out = allocated(&text) };
    }
    0
}

/// With the allocator that callers free with.
fn allocated(text: &str) -> *mut u16 {
    let units: Vec<u16> = text.encode_utf16().chain([0]).collect();
    // SAFETY: a size is always valid; null is an answer.
    let place = unsafe { CoTaskMemAlloc(size_of_val(&units[..])) }.cast::<u16>();
    if !place.is_null() {
        // SAFETY: the place has the size of the units, and is nobody else's.
        unsafe { std::ptr::copy_nonoverlapping(units.as_ptr(), place, units.len()) };
    }
    place
}

/// # Safety
/// `text` ends with a zero.
unsafe fn text(text: *const u16) -> String {
    // SAFETY: as promised by the caller, every place up to the zero can be read.
    let units = (0..).map(|at| unsafe { *text.add(at) }).take_while(|unit| *unit != 0);
    String::from_utf16_lossy(&units.collect::<Vec<u16>>())
}

/// # Safety
/// `id` can be read.
unsafe fn guid(id: *const GUID) -> String {
    // SAFETY: as promised by the caller.
    let GUID { data1, data2, data3, data4: [a, b, rest @ ..] } = unsafe { *id };
    let rest: String = rest.iter().map(|byte| format!("{byte:02X}")).collect();
    format!("{data1:08X}-{data2:04X}-{data3:04X}-{a:02X}{b:02X}-{rest}")
}
