// SPDX-License-Identifier: Apache-2.0
/// @file
/// The functions of CUDA's runtime and of NCCL that are called, doing nothing: what is left to count are the library's own instructions.

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdlib>

struct ncclComm {};

extern "C" {

cudaError_t cudaDriverGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
char const* cudaGetErrorName(cudaError_t) { return ""; }
char const* cudaGetErrorString(cudaError_t) { return ""; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return *event = nullptr, cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  static char one;
  return *stream = reinterpret_cast<cudaStream_t>(&one), cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  return *status = cudaStreamCaptureStatusNone, cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaMemcpyAsync(void*, void const*, std::size_t, cudaMemcpyKind, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaHostAlloc(void** block, std::size_t bytes, unsigned) { return *block = std::calloc(1, bytes), cudaSuccess; }
cudaError_t cudaFreeHost(void* block) { return std::free(block), cudaSuccess; }

ncclResult_t ncclGetVersion(int* version) { return *version = NCCL_VERSION_CODE, ncclSuccess; }
char const* ncclGetErrorString(ncclResult_t) { return ""; }
char const* ncclGetLastError(ncclComm_t) { return ""; }
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int, ncclUniqueId, int, ncclConfig_t*) {
  static ncclComm one;
  return *comm = &one, ncclSuccess;
}
ncclResult_t ncclCommCount(ncclComm_t, int* count) { return *count = 2, ncclSuccess; }
ncclResult_t ncclCommUserRank(ncclComm_t, int* rank) { return *rank = 0, ncclSuccess; }
ncclResult_t ncclCommCuDevice(ncclComm_t, int* device) { return *device = 0, ncclSuccess; }
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* state) { return *state = ncclSuccess, ncclSuccess; }
ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommDestroy(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommAbort(ncclComm_t) { return ncclSuccess; }
#if NCCL_VERSION_CODE >= 22809
ncclResult_t ncclCommRevoke(ncclComm_t, int) { return ncclSuccess; }
#endif
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void*, ncclDataType_t, ncclScalarResidence_t, ncclComm_t) {
  return *op = ncclSum, ncclSuccess;
}
ncclResult_t ncclRedOpDestroy(ncclRedOp_t, ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclAllGather(void const*, void*, std::size_t, ncclDataType_t, ncclComm_t, cudaStream_t) { return ncclSuccess; }
ncclResult_t ncclReduceScatter(void const*, void*, std::size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t) {
  return ncclSuccess;
}
ncclResult_t ncclAllReduce(void const*, void*, std::size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t) { return ncclSuccess; }

}  // extern "C"
