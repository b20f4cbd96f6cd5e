// An exactly even placement with split tokens for some experts on some GPUs: the core of
// alias_placement.
#ifndef EPLB_PLACEMENT_ALIAS_DOMAIN_H_
#define EPLB_PLACEMENT_ALIAS_DOMAIN_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace eplb {

// Experts that may be placed on certain GPUs only: those of a whole layer, or of one node.
struct AliasDomain {
  std::span<const int32_t> experts;       // ids, each once
  std::span<const int64_t> loads;         // [E] of the layer, by id; tokens, >= 0; no sum overflows
  std::span<const int32_t> slots_of_gpu;  // of each GPU; GPUs are equally fast
};

// Whether every load on such a domain can be made exactly even without two replicas of an expert on
// one GPU: experts <= GPUs * (fewest slots of a GPU - 1), that is slots >= experts + GPUs where all
// have the same number, and no GPU has more slots than there are experts.
bool AliasFits(int64_t num_experts, std::span<const int32_t> slots_of_gpu);

// Solves domains one after the other; holds the scratch memory, so that domains cost no allocation
// once the largest was seen. Threads: one at a time.
//
// Method: the alias method of Walker and Vose, for k = fewest slots - 1 whole experts a GPU
// instead of one. Pad the experts with zeros to k * G and sort them. Take the GPUs in turn, with t
// = ceil(tokens left / GPUs left): the k lightest experts left sum to at most t and the k heaviest
// to at least t, so among the windows of k neighbours there is one, A, whose sum is at most t while
// the next one, A - a + b, has more (or A is the last). The GPU takes A whole and t - sum(A) of b.
// What is left of b is between a and b, so it takes A's place in the order: nothing is sorted
// again, and k experts for each GPU left remain. So every load, however skewed, comes out at
// ceil(mean) or below in integers, and only b is continued on a later GPU. The k neighbours below
// the gap sum to at most sum(A) and the k above it to more than t, so the next window is found
// within k + 1 slides (but once, when t falls by one, among equal experts).
class AliasSolver {
 public:
  // slots: the expert of each slot, GPU by GPU; no expert twice on a GPU, each in one slot at
  // least. quotas: the tokens it takes there; an expert's sum to its load, a GPU's to at most
  // ceil(mean). Slots that are left over get the expert with most load per replica that is not on
  // the GPU yet, with quota 0. Without load the experts are spread: their numbers of replicas
  // differ by at most one. Deterministic: equal loads in the order of `experts`. REQUIRES:
  // AliasFits; spans of the size said. cost: O(bytes of a load * experts + slots + left-over slots
  // * log experts).
  void Solve(const AliasDomain& domain, std::span<int32_t> slots, std::span<int64_t> quotas);

 private:
  // An expert in the sorted list, or a zero of the padding (expert -1).
  struct Node {
    int64_t tokens;  // still to be placed
    int32_t expert;
    int32_t before;  // in the list; 0 is its lower end
    int32_t after;   // num_nodes_ + 1 is its upper end
  };
  struct Key {
    uint64_t tokens;
    int32_t expert;
  };
  // k neighbours of the list.
  struct Window {
    int32_t first;
    int32_t last;
    int64_t tokens;
  };
  struct Replicated {
    double tokens_per_replica;
    double tokens;
    int32_t replicas;
    int32_t expert;
  };
  struct Lighter {
    bool operator()(const Replicated& a, const Replicated& b) const;
  };

  void SortByLoad(const AliasDomain& domain);
  void MakeList(const AliasDomain& domain);
  // The window of k neighbours that crosses `target`, looked for from around `near`.
  Window FindWindow(int32_t near, int32_t length, int64_t target) const;
  // Returns how many slots of the GPU are used.
  size_t FillGpu(const Window& window, int64_t target, std::span<int32_t> slots,
                 std::span<int64_t> quotas);
  void FindCandidates(size_t num_leftovers, size_t most_slots);
  void FillLeftovers(const AliasDomain& domain, std::span<int32_t> slots);

  int32_t num_nodes_ = 0;
  int32_t around_ = 0;  // where the last window was
  std::vector<Key> keys_;
  std::vector<Key> sorted_;
  std::vector<Node> nodes_;
  std::vector<size_t> used_;       // slots of each GPU
  std::vector<int32_t> replicas_;  // [E], by id, of the domain's experts
  std::vector<int32_t> held_on_;   // [E], likewise: the last GPU with left-over slots that holds it
  std::vector<Replicated> heap_;   // experts that a left-over slot may get
  std::vector<Replicated> set_aside_;
};

}  // namespace eplb

#endif  // EPLB_PLACEMENT_ALIAS_DOMAIN_H_
