//! The libraries of the system: computenetwork.dll, and vmcompute.dll for the version.
//!
//! They are loaded at run time, from the system's folder only: a Windows without them can still start this program, and no
//! file beside it can take their place.

mod listen;
mod text;

use std::ffi::{CString, c_void};
use std::fmt;

use windows_sys::Win32::Foundation::{GetLastError, HMODULE};
use windows_sys::Win32::System::LibraryLoader::{
    GetProcAddress, LOAD_LIBRARY_SEARCH_SYSTEM32, LoadLibraryExW,
};
use windows_sys::core::GUID;

use self::listen::Registration;
use self::text::{Returned, wide};
use crate::api::{Api, Handle, Kind, OnNotification};
use crate::error::{Code, Error};
use crate::guid::Guid;

type Pointer = *mut c_void;
type Out = *mut *mut u16;
type Enumerate = unsafe extern "system" fn(*const u16, Out, Out) -> i32;
type Open = unsafe extern "system" fn(*const GUID, *mut Pointer, Out) -> i32;
type Create = unsafe extern "system" fn(*const GUID, *const u16, *mut Pointer, Out) -> i32;
type CreateIn = unsafe extern "system" fn(Pointer, *const GUID, *const u16, *mut Pointer, Out) -> i32;
type Modify = unsafe extern "system" fn(Pointer, *const u16, Out) -> i32;
type Query = unsafe extern "system" fn(Pointer, *const u16, Out, Out) -> i32;
type Delete = unsafe extern "system" fn(*const GUID, Out) -> i32;
type Close = unsafe extern "system" fn(Pointer) -> i32;
type CallV1 = unsafe extern "system" fn(*const u16, *const u16, *const u16, Out) -> i32;

/// Both stay loaded until the process ends.
pub struct Library {
    network: Module,
    compute: Module,
    /// The current registration of a callback.
    registration: Option<Registration>,
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library").finish_non_exhaustive()
    }
}

struct Module(HMODULE);

// SAFETY: the handle of a loaded library belongs to the process, not to a thread.
unsafe impl Send for Module {}

impl Module {
    fn load(name: &str) -> Result<Module, Error> {
        // SAFETY: the name ends with a zero, and the system runs only code of its own folder.
        let module = unsafe {
            LoadLibraryExW(wide(name).as_ptr(), std::ptr::null_mut(), LOAD_LIBRARY_SEARCH_SYSTEM32)
        };
        if module.is_null() {
            // SAFETY: reads a value of this thread.
            return Err(Error::new("LoadLibraryEx", Code::new(unsafe { GetLastError() }), name));
        }
        Ok(Module(module))
    }

    /// # Safety
    /// `F` is the type of that function's pointer.
    unsafe fn function<F: Copy>(&self, name: &str) -> Result<F, Error> {
        const { assert!(size_of::<F>() == size_of::<Pointer>()) }
        let missing = || Error::new("GetProcAddress", Code::FUNCTION_MISSING, name);
        let symbol = CString::new(name).map_err(|_| missing())?;
        // SAFETY: the module is loaded, and the name ends with a zero.
        let found = unsafe { GetProcAddress(self.0, symbol.as_ptr().cast()) }.ok_or_else(missing)?;
        // SAFETY: as promised by the caller; both are pointers to functions.
        Ok(unsafe { std::mem::transmute_copy(&found) })
    }
}

impl Library {
    pub fn load() -> Result<Library, Error> {
        let (network, compute) = (Module::load("computenetwork.dll")?, Module::load("vmcompute.dll")?);
        Ok(Library { network, compute, registration: None })
    }
}

#[cfg(feature = "testing")]
impl Library {
    /// Calls of this thread go to this address, if the libraries are those of `ferroxy-hcn-fake`; an error if they are not.
    pub fn address_fake(&self, address: std::net::SocketAddr) -> Result<(), Error> {
        type Address = unsafe extern "system" fn(*const u16) -> i32;
        let text = wide(&address.to_string());
        for module in [&self.network, &self.compute] {
            // SAFETY: the function has this type, and the text ends with a zero.
            unsafe { module.function::<Address>("FerroxyFakeAddress")?(text.as_ptr()) };
        }
        Ok(())
    }
}

/// Turns the code of a call, and the error record that it left, into a result.
fn check(call: &str, code: i32, record: Returned) -> Result<(), Error> {
    let record = record.into_text();
    // Positive codes are kinds of success.
    let (is_good, code) = (code >= 0, code.cast_unsigned());
    match record {
        // A record is a failure even with a good code.
        Some(record) if !record.is_empty() => {
            let number = serde_json::from_str::<serde_json::Value>(&record).ok();
            let field = |name: &str| number.as_ref().and_then(|it| it.get(name));
            let said = field("ErrorCode").and_then(serde_json::Value::as_u64);
            let said = said.and_then(|number| u32::try_from(number).ok()).filter(|number| *number != 0);
            let words = field("Error").and_then(serde_json::Value::as_str).unwrap_or(&record).to_owned();
            let code = if is_good { said.unwrap_or(Code::INVALID_DATA.hresult()) } else { code };
            Err(Error::new(call, Code::new(code), words))
        }
        _ if is_good => Ok(()),
        _ => Err(Error::new(call, Code::new(code), "")),
    }
}

fn guid(id: Guid) -> GUID {
    GUID::from_u128(u128::from_be_bytes(id.0))
}

fn pointer(handle: Handle) -> Pointer {
    handle.0 as usize as Pointer
}

fn handle(pointer: Pointer) -> Handle {
    Handle(pointer as usize as u64)
}

impl Api for Library {
    fn enumerate(&mut self, kind: Kind, query: &str) -> Result<String, Error> {
        let call = format!("HcnEnumerate{}s", kind.as_str());
        let (mut ids, mut record) = (Returned::default(), Returned::default());
        // SAFETY: the type is that of the documentation; all texts end with a zero and live until the end of the call.
        let code = unsafe {
            self.network.function::<Enumerate>(&call)?(wide(query).as_ptr(), ids.place(), record.place())
        };
        check(&call, code, record)?;
        Ok(ids.into_text().unwrap_or_default())
    }

    fn open(&mut self, kind: Kind, id: Guid) -> Result<Handle, Error> {
        let call = format!("HcnOpen{}", kind.as_str());
        let (id, mut opened, mut record) = (guid(id), std::ptr::null_mut(), Returned::default());
        // SAFETY: as above.
        let code =
            unsafe { self.network.function::<Open>(&call)?(&raw const id, &raw mut opened, record.place()) };
        check(&call, code, record)?;
        Ok(handle(opened))
    }

    fn create(
        &mut self,
        kind: Kind,
        network: Option<Handle>,
        id: Guid,
        settings: &str,
    ) -> Result<Handle, Error> {
        let call = format!("HcnCreate{}", kind.as_str());
        let (mut created, mut record) = (std::ptr::null_mut(), Returned::default());
        let (id, settings) = (guid(id), wide(settings));
        // SAFETY: as above. Endpoints are created in a network, everything else without.
        let code = unsafe {
            match network {
                Some(network) => self.network.function::<CreateIn>(&call)?(
                    pointer(network),
                    &raw const id,
                    settings.as_ptr(),
                    &raw mut created,
                    record.place(),
                ),
                None => self.network.function::<Create>(&call)?(
                    &raw const id,
                    settings.as_ptr(),
                    &raw mut created,
                    record.place(),
                ),
            }
        };
        check(&call, code, record)?;
        Ok(handle(created))
    }

    fn modify(&mut self, kind: Kind, handle: Handle, settings: &str) -> Result<(), Error> {
        let call = format!("HcnModify{}", kind.as_str());
        let mut record = Returned::default();
        // SAFETY: as above; the handle is open.
        let code = unsafe {
            self.network.function::<Modify>(&call)?(pointer(handle), wide(settings).as_ptr(), record.place())
        };
        check(&call, code, record)
    }

    fn query(&mut self, kind: Kind, handle: Handle, query: &str) -> Result<String, Error> {
        let call = format!("HcnQuery{}Properties", kind.as_str());
        let (mut found, mut record) = (Returned::default(), Returned::default());
        // SAFETY: as above; the handle is open.
        let code = unsafe {
            self.network.function::<Query>(&call)?(
                pointer(handle),
                wide(query).as_ptr(),
                found.place(),
                record.place(),
            )
        };
        check(&call, code, record)?;
        Ok(found.into_text().unwrap_or_default())
    }

    fn delete(&mut self, kind: Kind, id: Guid) -> Result<(), Error> {
        let call = format!("HcnDelete{}", kind.as_str());
        let (id, mut record) = (guid(id), Returned::default());
        // SAFETY: as above.
        let code = unsafe { self.network.function::<Delete>(&call)?(&raw const id, record.place()) };
        check(&call, code, record)
    }

    fn close(&mut self, kind: Kind, handle: Handle) {
        // SAFETY: as above; nobody uses the handle after this.
        unsafe {
            if let Ok(close) = self.network.function::<Close>(&format!("HcnClose{}", kind.as_str())) {
                close(pointer(handle));
            }
        }
    }

    fn call_v1(&mut self, method: &str, path: &str) -> Result<String, Error> {
        const CALL: &str = "HNSCall";
        let mut answer = Returned::default();
        // SAFETY: as above.
        let code = unsafe {
            self.compute.function::<CallV1>(CALL)?(
                wide(method).as_ptr(),
                wide(path).as_ptr(),
                wide("").as_ptr(),
                answer.place(),
            )
        };
        check(CALL, code, Returned::default())?;
        Ok(answer.into_text().unwrap_or_default())
    }

    fn listen(&mut self, notify: OnNotification) -> Result<(), Error> {
        let registration = Registration::new(&self.network, notify)?;
        // The previous registration ends here.
        self.registration = Some(registration);
        Ok(())
    }
}
