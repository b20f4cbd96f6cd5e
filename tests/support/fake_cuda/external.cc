#include "tests/support/fake_cuda/external.h"

#include <utility>
#include <vector>

#include "tests/support/fake_cuda/fake_cuda.h"

namespace eplb::fake_cuda {
namespace {

using TellFree = std::function<void(const void* address, size_t size)>;

std::vector<TellFree>& Listeners() {
  static auto* const listeners = new std::vector<TellFree>();
  return *listeners;
}

int DeviceOfStream(cudaStream_t stream) {
  const std::lock_guard<std::recursive_mutex> lock(Mutex());
  return DeviceOf(stream);
}

std::byte* ViewOn(const void* address, size_t size, int device) {
  const std::lock_guard<std::recursive_mutex> lock(Mutex());
  const View view = ViewOf(address, size);
  return view.place == Place::kDevice && view.device == device ? view.bytes : nullptr;
}

void Listen(TellFree tell) {
  const std::lock_guard<std::recursive_mutex> lock(Mutex());
  Listeners().push_back(std::move(tell));
}

cudaError_t Allocate(void** address, size_t size) { return cudaMalloc(address, size); }

}  // namespace

void TellOfFree(const void* address, size_t size) {
  for (const TellFree& tell : Listeners()) tell(address, size);
}

}  // namespace eplb::fake_cuda

const eplb::fake_cuda::ForLibraries* fakeCudaForLibraries() {
  namespace fake = eplb::fake_cuda;
  static constexpr fake::ForLibraries kTable = {.current_device = &fake::CurrentDevice,
                                                .device_of_stream = &fake::DeviceOfStream,
                                                .view = &fake::ViewOn,
                                                .enqueue = &fake::EnqueueExternal,
                                                .on_free = &fake::Listen,
                                                .allocate = &fake::Allocate,
                                                .free = &cudaFree};
  return &kTable;
}
