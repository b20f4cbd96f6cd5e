// In place of device_mirror.cc in a build without CUDA, where no mirror can be made.
#include <utility>

#include "deploy/examples/replay_trainer/device_mirror.h"

namespace eplb {
namespace {

absl::Status NoCuda() {
  return absl::FailedPreconditionError("expert memory on a GPU needs a build with CUDA");
}

}  // namespace

struct DeviceMirror::Impl {};

DeviceMirror::DeviceMirror(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DeviceMirror::~DeviceMirror() = default;

absl::StatusOr<int32_t> DeviceMirror::ChooseDevice(int32_t) { return NoCuda(); }
absl::StatusOr<std::unique_ptr<DeviceMirror>> DeviceMirror::Make(
    int32_t, std::vector<std::span<std::byte>>) {
  return NoCuda();
}
absl::Status DeviceMirror::Upload() { return NoCuda(); }
absl::Status DeviceMirror::Download() { return NoCuda(); }
std::byte* DeviceMirror::OnDevice(size_t) const { return nullptr; }
void* DeviceMirror::stream() const { return nullptr; }

}  // namespace eplb
