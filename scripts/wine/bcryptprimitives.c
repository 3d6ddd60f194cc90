/*
 * bcryptprimitives.dll for wine 8, which lacks it: the one function that Rust's standard library imports. scripts/cross builds
 * it for tests; nothing that users get contains it.
 */
#include <windows.h>

/* RtlGenRandom, under the name that advapi32.dll exports. */
BOOLEAN WINAPI SystemFunction036(PVOID buffer, ULONG length);

__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE buffer, SIZE_T length)
{
    while (length > 0) {
        ULONG part = length > 0x40000000 ? 0x40000000 : (ULONG)length;
        if (!SystemFunction036(buffer, part))
            return FALSE;
        buffer += part;
        length -= part;
    }
    return TRUE;
}
