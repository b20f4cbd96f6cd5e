#include "server/rpc/all_gather.h"

#include <limits>

#include "absl/strings/numbers.h"

#include "base/monotonic_clock.h"
#include "proto/wire/status.h"

namespace eplb {
namespace {

// A number that no int32 holds becomes -1, which the rendezvous refuses.
int32_t Narrow(uint32_t number) {
  return number > static_cast<uint32_t>(std::numeric_limits<int32_t>::max())
             ? -1
             : static_cast<int32_t>(number);
}

// Returns -1 for a text that is no number. The rendezvous refuses it.
int32_t NumberOf(const std::string& key) {
  int32_t number = -1;
  return absl::SimpleAtoi(key, &number) ? number : -1;
}

class AllGatherReactor : public grpc::ServerUnaryReactor {
 public:
  AllGatherReactor(v1::AllGatherResponse* response, Rendezvous* rendezvous)
      : response_(response), rendezvous_(rendezvous) {}

  void Join(const v1::AllGatherRequest& request, absl::Duration patience) {
    rendezvous_->Join(
        {.job = request.job(),
         .launch_id = request.launch_id(),
         .token = request.token(),
         .number = NumberOf(request.key()),
         .rank = Narrow(request.rank()),
         .world_size = Narrow(request.world_size()),
         .nonce = request.nonce(),
         .patience = patience,
         .blob = request.blob(),
         .previous = request.previous_blob()},
        this, [this](const absl::StatusOr<Rendezvous::Result>& result) { End(result); },
        MonotonicNow());
  }

  void OnCancel() override {
    // Otherwise the rendezvous has called End, or is about to.
    if (rendezvous_->Leave(this)) {
      Finish({grpc::StatusCode::CANCELLED, "the rank disconnected"});
    }
  }

  void OnDone() override { delete this; }

 private:
  void End(const absl::StatusOr<Rendezvous::Result>& result) {
    if (result.ok()) {
      for (const std::string& blob : (*result)->blobs) response_->add_blobs(blob);
      response_->set_token((*result)->token);
    }
    Finish(wire::ToGrpc(result.status()));
  }

  v1::AllGatherResponse* const response_;
  Rendezvous* const rendezvous_;
};

}  // namespace

grpc::ServerUnaryReactor* StartAllGather(const v1::AllGatherRequest& request,
                                         v1::AllGatherResponse* response, absl::Duration patience,
                                         Rendezvous* rendezvous) {
  auto* reactor = new AllGatherReactor(response, rendezvous);
  reactor->Join(request, patience);
  return reactor;
}

}  // namespace eplb
