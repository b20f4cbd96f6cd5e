#include <algorithm>

#include "placement/status_macros.h"
#include "proto/wire/clipped.h"
#include "proto/wire/convert.h"
#include "proto/wire/fields.h"

namespace eplb::wire {
namespace {

constexpr int kMaxSettings = 32;
constexpr size_t kMaxName = 64;    // bytes
constexpr size_t kMaxValue = 128;  // bytes

}  // namespace

void ToProto(const TransportInfo& transport, v1::TransportInfo* out) {
  out->set_name(transport.name);
  out->set_passed_over(transport.passed_over);
  if (transport.device.has_value()) out->set_device(static_cast<uint32_t>(*transport.device));
  out->set_device_name(transport.device_name);
  out->set_nccl_version(transport.nccl_version);
  out->set_nccl_library(transport.nccl_library);
  for (const TransportInfo::Setting& setting : transport.settings) {
    v1::TransportInfo::Setting* added = out->add_settings();
    added->set_name(setting.name);
    added->set_value(setting.value);
  }
}

absl::StatusOr<TransportInfo> FromProto(const v1::TransportInfo& in) {
  TransportInfo transport{.name = Clipped(in.name(), kMaxName),
                          .passed_over = Clipped(in.passed_over()),
                          .device = std::nullopt,
                          .device_name = Clipped(in.device_name(), kMaxValue),
                          .nccl_version = Clipped(in.nccl_version(), kMaxValue),
                          .nccl_library = Clipped(in.nccl_library()),
                          .settings = {}};
  if (in.has_device()) {
    EPLB_ASSIGN_OR_RETURN(transport.device, GetSmall("transport.device", in.device()));
  }
  const int num_settings = std::min(in.settings_size(), kMaxSettings);
  for (int i = 0; i < num_settings; ++i) {
    transport.settings.push_back({.name = Clipped(in.settings(i).name(), kMaxName),
                                  .value = Clipped(in.settings(i).value(), kMaxValue)});
  }
  return transport;
}

}  // namespace eplb::wire
