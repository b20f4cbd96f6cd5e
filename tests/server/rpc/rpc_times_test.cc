#include "server/rpc/rpc_times.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/client_unary_call.h>

#include "tests/server/rpc/served_test.h"

namespace eplb {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class RpcTimesTest : public ServedTest {
 protected:
  // "Query/GetJob OK 2"
  std::vector<std::string> Calls() const {
    std::vector<std::string> calls;
    for (const RpcTimes::Series& one : server_->rpc_times()) {
      calls.push_back(absl::StrCat(one.method, " ", one.code, " ", one.seconds.total()));
    }
    return calls;
  }
};

TEST_F(RpcTimesTest, CallsAreTimedByMethodAndCodeAndStreamsAreNot) {
  Start();
  (void)Join(0);
  EXPECT_THAT(server_->rpc_times(), IsEmpty());
  const auto ask = [this](const std::string& job) {
    return Call(*query_, &v1::Query::Stub::GetJob, About<v1::GetJobRequest>(job)).code();
  };
  EXPECT_EQ(ask("job"), grpc::StatusCode::OK);
  EXPECT_EQ(ask("job"), grpc::StatusCode::OK);
  EXPECT_EQ(ask("none"), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(ask(""), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(Calls(), ElementsAre("Query/GetJob OK 2", "Query/GetJob INVALID_ARGUMENT 1",
                                   "Query/GetJob NOT_FOUND 1"));
}

TEST_F(RpcTimesTest, MethodsThatDoNotExistShareOneName) {
  Start();
  for (int i = 0; i < 3; ++i) {
    const std::string name = absl::StrCat("/eplb.v1.Query/Get", i);  // the method points to it
    const grpc::internal::RpcMethod method(name.c_str(), grpc::internal::RpcMethod::NORMAL_RPC);
    grpc::ClientContext context;
    SetDeadline(&context);
    v1::GetJobRequest request;
    v1::JobStatus response;
    const grpc::Status status = grpc::internal::BlockingUnaryCall<v1::GetJobRequest, v1::JobStatus,
                                                                  google::protobuf::MessageLite,
                                                                  google::protobuf::MessageLite>(
        channel_.get(), method, &context, request, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  }
  EXPECT_THAT(Calls(), ElementsAre("other UNIMPLEMENTED 3"));
}

}  // namespace
}  // namespace eplb
