// The calls themselves: how many there were, which of them fail, and what a thread finds
// afterwards.
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/fake_cuda/fake_cuda.h"

namespace eplb::fake_cuda {
namespace {

thread_local cudaError_t last_error = cudaSuccess;
thread_local std::vector<CallFault> faults;

std::map<std::string, int64_t>& Counts() {
  static auto* const counts = new std::map<std::string, int64_t>();
  return *counts;
}

// Launches, too. The driver's calls use the context that is there.
bool IsOfTheRuntime(std::string_view name) { return name.starts_with("cuda") || name == "launch"; }

constexpr const char* kAllocations[] = {"cudaMalloc",
                                        "cudaFree",
                                        "cudaHostAlloc",
                                        "cudaFreeHost",
                                        "cudaHostRegister",
                                        "cudaHostUnregister",
                                        "cudaEventCreateWithFlags",
                                        "cudaEventDestroy",
                                        "cudaStreamCreateWithPriority",
                                        "cudaStreamDestroy",
                                        "cudaIpcOpenMemHandle",
                                        "cudaIpcCloseMemHandle",
                                        "cuMemCreate",
                                        "cuMemRelease",
                                        "cuMemAddressReserve",
                                        "cuMemAddressFree",
                                        "cuMemMap",
                                        "cuMemUnmap",
                                        "cuMemSetAccess",
                                        "cuMemImportFromShareableHandle"};

// The error of the fault that meets this call, which it uses up.
cudaError_t Meet(std::string_view name) {
  for (auto fault = faults.begin(); fault != faults.end(); ++fault) {
    if (fault->call != name) continue;
    if (fault->calls_before-- > 0) continue;
    const CallFault met = *fault;
    faults.erase(fault);
    if (met.sticky) Fail(met.error);
    return met.error;
  }
  return cudaSuccess;
}

}  // namespace

Call::Call(const char* name) : lock_(Mutex()) {
  ++Counts()[name];
  if (IsOfTheRuntime(name)) UseContext();
  error_ = Meet(name);
  if (error_ == cudaSuccess) error_ = Failure();
  if (error_ != cudaSuccess) last_error = error_;
}

cudaError_t Keep(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

void FailOnThisThread(CallFault fault) { faults.push_back(std::move(fault)); }
size_t NumFaultsOfThisThread() { return faults.size(); }

int64_t NumCalls(const std::string& name) {
  const std::lock_guard<std::recursive_mutex> lock(Mutex());
  return Counts()[name];
}

int64_t NumCalls() {
  const std::lock_guard<std::recursive_mutex> lock(Mutex());
  int64_t sum = 0;
  for (const auto& [name, count] : Counts()) sum += count;
  return sum;
}

int64_t NumAllocations() {
  const std::lock_guard<std::recursive_mutex> lock(Mutex());
  int64_t sum = 0;
  for (const char* const name : kAllocations) sum += Counts()[name];
  return sum;
}

}  // namespace eplb::fake_cuda

cudaError_t cudaGetLastError() { return std::exchange(eplb::fake_cuda::last_error, cudaSuccess); }

const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaSuccess ? "cudaSuccess" : "an error of the stand-in for CUDA";
}

const char* cudaGetErrorString(cudaError_t) { return "see cuda_runtime_api.h"; }

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
