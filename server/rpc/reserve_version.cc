#include "server/rpc/reserve_version.h"

#include "proto/wire/status.h"

namespace eplb {
namespace {

// Finished by the core's thread, or by the desk's deadline; none of gRPC's threads waits.
class ReserveReactor : public grpc::ServerUnaryReactor {
 public:
  explicit ReserveReactor(v1::ReserveVersionResponse* response) : response_(response) {}

  void Start(const v1::ReserveVersionRequest& request, Runner* runner) {
    const absl::Status status = runner->ReserveVersion(
        request.job(), [this](const absl::StatusOr<core::ChangeOutcome>& outcome) {
          if (outcome.ok()) response_->set_version(static_cast<uint64_t>(outcome->version));
          Finish(wire::ToGrpc(outcome.status()));
        });
    if (!status.ok()) Finish(wire::ToGrpc(status));
  }

  void OnDone() override { delete this; }

 private:
  v1::ReserveVersionResponse* const response_;
};

}  // namespace

grpc::ServerUnaryReactor* StartReserveVersion(const v1::ReserveVersionRequest& request,
                                              v1::ReserveVersionResponse* response,
                                              Runner* runner) {
  auto* reactor = new ReserveReactor(response);
  reactor->Start(request, runner);
  return reactor;
}

}  // namespace eplb
