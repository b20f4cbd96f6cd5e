// Shapes, placements and transports between protobuf and plain values.
#include <algorithm>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/status_macros.h"
#include "proto/wire/convert.h"
#include "proto/wire/fields.h"

namespace eplb::wire {
namespace {

constexpr size_t kMaxSettings = 32;
constexpr size_t kMaxName = 64;    // bytes
constexpr size_t kMaxValue = 128;  // bytes

// Number and digest of a placement message.
struct Stamp {
  int64_t version = 0;
  Digest digest;
};

TopologyOptions OptionsOf(const Topology& topology) {
  return {.num_layers = topology.num_layers(),
          .num_experts = topology.num_experts(),
          .num_slots = topology.num_slots(),
          .num_gpus = topology.num_gpus(),
          .num_nodes = topology.num_nodes(),
          .num_groups = topology.num_groups()};
}

}  // namespace

template <>
inline constexpr auto kFields<Stamp> =
    std::tuple{Field{"version", &Stamp::version}, Field{"digest", &Stamp::digest}};

template <>
inline constexpr auto kFields<TopologyOptions> =
    std::tuple{Field{"num_layers", &TopologyOptions::num_layers},
               Field{"num_experts", &TopologyOptions::num_experts},
               Field{"num_slots", &TopologyOptions::num_slots},
               Field{"num_gpus", &TopologyOptions::num_gpus},
               Field{"num_nodes", &TopologyOptions::num_nodes},
               Field{"num_groups", &TopologyOptions::num_groups}};

template <>
inline constexpr auto kFields<TransportInfo::Setting> =
    std::tuple{Field{"name", &TransportInfo::Setting::name, kMaxName},
               Field{"value", &TransportInfo::Setting::value, kMaxValue}};

template <>
inline constexpr auto kFields<TransportInfo> =
    std::tuple{Field{"name", &TransportInfo::name, kMaxName},
               Field{"fallback_reason", &TransportInfo::fallback_reason},
               Field{"device", &TransportInfo::device},
               Field{"device_name", &TransportInfo::device_name, kMaxValue},
               Field{"nccl_version", &TransportInfo::nccl_version, kMaxValue},
               Field{"nccl_library", &TransportInfo::nccl_library},
               Field{"settings", &TransportInfo::settings}};

void ToProto(const TopologyOptions& shape, v1::Shape* out) { WriteFields(shape, out); }

void ToProto(const Topology& shape, v1::Shape* out) { ToProto(OptionsOf(shape), out); }

absl::StatusOr<TopologyOptions> ShapeFromProto(const v1::Shape& shape) {
  TopologyOptions options;
  EPLB_RETURN_IF_ERROR(ReadFields(shape, &options, "shape."));
  return options;
}

absl::StatusOr<Topology> FromProto(const v1::Shape& shape) {
  EPLB_ASSIGN_OR_RETURN(const TopologyOptions options, ShapeFromProto(shape));
  return Topology::Make(options);
}

void ToProto(const LayerPlacement& layer, v1::LayerPlacement* out) {
  out->set_layer(static_cast<uint32_t>(layer.layer.value));
  out->mutable_physical_to_logical_map()->Assign(layer.physical_to_logical.begin(),
                                                 layer.physical_to_logical.end());
  out->mutable_replica_rank()->Assign(layer.replica_rank.begin(), layer.replica_rank.end());
}

LayerPlacement FromProto(const v1::LayerPlacement& layer) {
  // A number above 2^31-1 becomes negative here and is refused as a layer out of range later.
  return {LayerId{static_cast<int32_t>(layer.layer())},
          {layer.physical_to_logical_map().begin(), layer.physical_to_logical_map().end()},
          {layer.replica_rank().begin(), layer.replica_rank().end()}};
}

void ToProto(const Placement& placement, int64_t version, v1::Placement* out) {
  ToProto(placement.topology(), out->mutable_shape());
  for (int32_t layer = 0; layer < placement.topology().num_layers(); ++layer) {
    ToProto(placement.Layer(LayerId{layer}), out->add_layers());
  }
  WriteFields(Stamp{version, DigestOf(placement)}, out);
}

absl::StatusOr<PlacementBody> FromProto(const v1::Placement& placement) {
  EPLB_ASSIGN_OR_RETURN(const Topology topology, FromProto(placement.shape()));
  Stamp stamp;
  EPLB_RETURN_IF_ERROR(ReadFields(placement, &stamp, "placement."));
  if (placement.layers_size() != topology.num_layers()) {
    return InvalidInput("placement has ", placement.layers_size(), " layers, its shape has ",
                        topology.num_layers());
  }
  std::vector<LayerPlacement> layers;
  layers.reserve(static_cast<size_t>(placement.layers_size()));
  for (const v1::LayerPlacement& layer : placement.layers()) {
    // Before anything of the shape's size is allocated: a short message cannot ask for much memory.
    if (layer.physical_to_logical_map_size() != topology.num_slots()) {
      return InvalidInput("placement layer ", layer.layer(), " has ",
                          layer.physical_to_logical_map_size(), " slots, its shape has ",
                          topology.num_slots());
    }
    layers.push_back(FromProto(layer));
  }
  EPLB_ASSIGN_OR_RETURN(Placement value, Placement::Static(topology).WithLayers(layers));
  if (DigestOf(value) != stamp.digest) {
    return InvalidInput("placement.digest is ", stamp.digest.Hex(), ", the maps give ",
                        DigestOf(value).Hex());
  }
  return PlacementBody{stamp.version, stamp.digest, std::move(value)};
}

void ToProto(const TransportInfo& transport, v1::TransportInfo* out) {
  WriteFields(transport, out);
}

absl::StatusOr<TransportInfo> FromProto(const v1::TransportInfo& in) {
  TransportInfo transport;
  EPLB_RETURN_IF_ERROR(ReadFields(in, &transport, "transport."));
  transport.settings.resize(std::min(transport.settings.size(), kMaxSettings));
  return transport;
}

}  // namespace eplb::wire
