/* Compiled, not run: what python/ffi/abi.h declares of TVM FFI and DLPack is what their own headers
 * say. Their functions are declared there with other names of the same types, so ours are renamed
 * here. */
#define TVMFFIObjectIncRef           ours_IncRef
#define TVMFFIObjectDecRef           ours_DecRef
#define TVMFFIFunctionCall           ours_FunctionCall
#define TVMFFIErrorMoveFromRaised    ours_ErrorMoveFromRaised
#define TVMFFIErrorSetRaisedFromCStr ours_ErrorSetRaisedFromCStr
#define TVMFFIStringFromByteArray    ours_StringFromByteArray
#define TVMFFIBytesFromByteArray     ours_BytesFromByteArray
#define TVMFFIEnvGetStream           ours_EnvGetStream
#include "abi.h"
#undef TVMFFIObjectIncRef
#undef TVMFFIObjectDecRef
#undef TVMFFIFunctionCall
#undef TVMFFIErrorMoveFromRaised
#undef TVMFFIErrorSetRaisedFromCStr
#undef TVMFFIStringFromByteArray
#undef TVMFFIBytesFromByteArray
#undef TVMFFIEnvGetStream
#include <tvm/ffi/c_api.h>
#include <tvm/ffi/extra/c_env_api.h>

#define SAME(a, b) _Static_assert((a) == (b), #a " is not " #b)
#define SAME_FIELD(ours, a, theirs, b)                                                             \
  SAME(offsetof(ours, a), offsetof(theirs, b));                                                    \
  SAME(sizeof(((ours *)0)->a), sizeof(((theirs *)0)->b))

SAME(sizeof(dl_tensor), sizeof(DLTensor));
SAME_FIELD(dl_tensor, data, DLTensor, data);
SAME_FIELD(dl_tensor, device, DLTensor, device);
SAME_FIELD(dl_tensor, ndim, DLTensor, ndim);
SAME_FIELD(dl_tensor, dtype, DLTensor, dtype);
SAME_FIELD(dl_tensor, shape, DLTensor, shape);
SAME_FIELD(dl_tensor, strides, DLTensor, strides);
SAME_FIELD(dl_tensor, byte_offset, DLTensor, byte_offset);
SAME_FIELD(dl_device, type, DLDevice, device_type);
SAME_FIELD(dl_device, id, DLDevice, device_id);
SAME_FIELD(dl_dtype, code, DLDataType, code);
SAME_FIELD(dl_dtype, bits, DLDataType, bits);
SAME_FIELD(dl_dtype, lanes, DLDataType, lanes);
SAME(DL_CPU, kDLCPU);
SAME(DL_CUDA, kDLCUDA);
SAME(DL_CUDA_HOST, kDLCUDAHost);
SAME(DL_INT, kDLInt);
SAME(DL_UINT, kDLUInt);
SAME(DL_FLOAT, kDLFloat);
SAME(DL_BFLOAT, kDLBfloat);
SAME(DL_E4M3, kDLFloat8_e4m3fn);

SAME(sizeof(ffi_any), sizeof(TVMFFIAny));
SAME_FIELD(ffi_any, type, TVMFFIAny, type_index);
SAME_FIELD(ffi_any, length, TVMFFIAny, small_str_len);
SAME_FIELD(ffi_any, u, TVMFFIAny, v_int64);
SAME(sizeof(ffi_object), sizeof(TVMFFIObject));
SAME_FIELD(ffi_object, references, TVMFFIObject, combined_ref_count);
SAME_FIELD(ffi_object, type, TVMFFIObject, type_index);
SAME(sizeof(ffi_bytes), sizeof(TVMFFIByteArray));
SAME_FIELD(ffi_bytes, data, TVMFFIByteArray, data);
SAME_FIELD(ffi_bytes, size, TVMFFIByteArray, size);
SAME(FFI_NONE, kTVMFFINone);
SAME(FFI_INT, kTVMFFIInt);
SAME(FFI_BOOL, kTVMFFIBool);
SAME(FFI_FLOAT, kTVMFFIFloat);
SAME(FFI_POINTER, kTVMFFIOpaquePtr);
SAME(FFI_DL_TENSOR, kTVMFFIDLTensorPtr);
SAME(FFI_RAW_STRING, kTVMFFIRawStr);
SAME(FFI_BYTES_VIEW, kTVMFFIByteArrayPtr);
SAME(FFI_SMALL_STRING, kTVMFFISmallStr);
SAME(FFI_SMALL_BYTES, kTVMFFISmallBytes);
SAME(FFI_STRING, kTVMFFIStr);
SAME(FFI_BYTES, kTVMFFIBytes);
SAME(FFI_FUNCTION, kTVMFFIFunction);
SAME(FFI_TENSOR, kTVMFFITensor);
