// The layers of a proposal.
#ifndef EPLB_PROTO_WIRE_LAYER_LIST_H_
#define EPLB_PROTO_WIRE_LAYER_LIST_H_

#include <initializer_list>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "placement/placement.h"

namespace eplb::wire {

// Copies share the layers until one of them is changed: a proposal of 58 x 288 slots goes to every
// rank of a job, and a copy for each of 2,000 ranks would be 268 MB. Threads: as a value; sharing
// copies may be read and destroyed on different threads.
class LayerList {
 public:
  using Layers = std::vector<LayerPlacement>;

  LayerList() = default;
  LayerList(std::initializer_list<LayerPlacement> layers)
      : layers_(std::make_shared<Layers>(layers)) {}

  size_t size() const { return get().size(); }
  bool empty() const { return get().empty(); }
  Layers::const_iterator begin() const { return get().begin(); }
  Layers::const_iterator end() const { return get().end(); }
  const LayerPlacement& operator[](size_t i) const { return get()[i]; }
  const LayerPlacement& front() const { return get().front(); }
  const LayerPlacement& back() const { return get().back(); }
  // NOLINTNEXTLINE(google-explicit-constructor): reads like the vector that it stands for
  operator std::span<const LayerPlacement>() const { return get(); }

  void push_back(LayerPlacement layer) { Own().push_back(std::move(layer)); }
  void clear() { layers_.reset(); }
  LayerPlacement& front() { return Own().front(); }
  LayerPlacement& back() { return Own().back(); }

  // True when both are copies of one list and neither was changed since.
  bool SharesWith(const LayerList& other) const {
    return layers_ != nullptr && layers_ == other.layers_;
  }
  friend bool operator==(const LayerList& a, const LayerList& b) { return a.get() == b.get(); }

 private:
  const Layers& get() const {
    static const Layers none;
    return layers_ == nullptr ? none : *layers_;
  }
  Layers& Own() {
    if (layers_ == nullptr) layers_ = std::make_shared<Layers>();
    if (layers_.use_count() > 1) layers_ = std::make_shared<Layers>(*layers_);
    return *layers_;
  }

  std::shared_ptr<Layers> layers_;
};

}  // namespace eplb::wire

#endif  // EPLB_PROTO_WIRE_LAYER_LIST_H_
