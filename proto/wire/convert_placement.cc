#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "placement/status_macros.h"
#include "proto/wire/convert.h"
#include "proto/wire/fields.h"

namespace eplb::wire {
namespace {

TopologyOptions OptionsOf(const Topology& topology) {
  return {.num_layers = topology.num_layers(),
          .num_experts = topology.num_experts(),
          .num_slots = topology.num_slots(),
          .num_gpus = topology.num_gpus(),
          .num_nodes = topology.num_nodes(),
          .num_groups = topology.num_groups()};
}

}  // namespace

void ToProto(const TopologyOptions& shape, v1::Shape* out) {
  out->set_num_layers(static_cast<uint32_t>(shape.num_layers));
  out->set_num_experts(static_cast<uint32_t>(shape.num_experts));
  out->set_num_slots(static_cast<uint32_t>(shape.num_slots));
  out->set_num_gpus(static_cast<uint32_t>(shape.num_gpus));
  out->set_num_nodes(static_cast<uint32_t>(shape.num_nodes));
  out->set_num_groups(static_cast<uint32_t>(shape.num_groups));
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
  ToProto(OptionsOf(placement.topology()), out->mutable_shape());
  for (int32_t layer = 0; layer < placement.topology().num_layers(); ++layer) {
    ToProto(placement.Layer(LayerId{layer}), out->add_layers());
  }
  out->set_version(static_cast<uint64_t>(version));
  SetDigest(DigestOf(placement), out->mutable_digest());
}

absl::StatusOr<PlacementBody> FromProto(const v1::Placement& placement) {
  EPLB_ASSIGN_OR_RETURN(const Topology topology, FromProto(placement.shape()));
  EPLB_ASSIGN_OR_RETURN(const int64_t version, GetCount("placement.version", placement.version()));
  EPLB_ASSIGN_OR_RETURN(const Digest digest, GetDigest("placement.digest", placement.digest()));
  if (placement.layers_size() != topology.num_layers()) {
    return absl::InvalidArgumentError(absl::StrCat("placement has ", placement.layers_size(),
                                                   " layers, its shape says ",
                                                   topology.num_layers()));
  }
  std::vector<LayerPlacement> layers;
  layers.reserve(static_cast<size_t>(placement.layers_size()));
  for (const v1::LayerPlacement& layer : placement.layers()) {
    // Before anything of the shape's size is allocated: a short message cannot ask for much memory.
    if (layer.physical_to_logical_map_size() != topology.num_slots()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "placement layer ", layer.layer(), " has ", layer.physical_to_logical_map_size(),
          " slots, its shape says ", topology.num_slots()));
    }
    layers.push_back(FromProto(layer));
  }
  EPLB_ASSIGN_OR_RETURN(Placement value, Placement::Static(topology).WithLayers(layers));
  if (DigestOf(value) != digest) {
    return absl::InvalidArgumentError(absl::StrCat("placement.digest is ", digest.Hex(),
                                                   ", the maps give ", DigestOf(value).Hex()));
  }
  return PlacementBody{version, digest, std::move(value)};
}

}  // namespace eplb::wire
