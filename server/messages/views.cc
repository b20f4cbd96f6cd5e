#include "server/messages/views.h"

#include <bit>
#include <cstring>
#include <string>

namespace eplb {
namespace {

static_assert(std::endian::native == std::endian::little);  // the order of bytes in counts_u64

}  // namespace

void ToProto(const core::RefusedJob& refused, absl::Time now, v1::Refusal* out) {
  out->set_job(refused.job);
  out->set_reason(refused.reason);
  out->set_count(static_cast<uint64_t>(refused.count));
  out->set_seconds_ago(absl::ToDoubleSeconds(now - refused.at));
}

void ToProto(const core::WindowView& window, v1::GetLoadResponse* out) {
  const LoadMatrix& counts = window.load->counts();
  out->set_first_step(static_cast<uint64_t>(window.first_step));
  out->set_last_step(static_cast<uint64_t>(window.last_step));
  out->set_num_layers(static_cast<uint32_t>(counts.rows()));
  out->set_num_experts(static_cast<uint32_t>(counts.cols()));
  std::string* bytes = out->mutable_counts_u64();
  bytes->resize(static_cast<size_t>(counts.size()) * sizeof(int64_t));
  std::memcpy(bytes->data(), counts.data(), bytes->size());
  if (window.on_gpus == nullptr) return;
  const RealMatrix& gpu_loads = window.on_gpus->loads;
  out->mutable_gpu_loads()->Assign(gpu_loads.data(), gpu_loads.data() + gpu_loads.size());
  for (const int64_t version : window.on_gpus->versions) {
    out->add_versions(static_cast<uint64_t>(version));
  }
}

}  // namespace eplb
