#include "tests/fault/caller/http_shop.h"

#include <httplib.h>

#include <string>
#include <thread>
#include <variant>

#include "client/http/httplib_adapter.h"
#include "client/http/middleware.h"
#include "tests/fault/caller/once.h"

namespace idempotency::fault {
namespace {

constexpr std::size_t kThreads = 12;
constexpr std::chrono::seconds kPatience{5};

HttpMiddlewareOptions Quiet() {
  HttpMiddlewareOptions options;
  options.notice = [](const HttpNotice&) {};
  return options;
}

// What the handler tells the middleware, and the client.
HttpEffect Say(const FunctionResult& result, httplib::Response& response) {
  if (const auto* const executed = std::get_if<Executed>(&result)) {
    response.status = executed->response.status_code();
    response.set_content(executed->response.body(), "text/plain");
    return HttpEffect::kExecuted;
  }
  response.status = 503;
  return std::holds_alternative<NothingHappened>(result) ? HttpEffect::kNothing
                                                         : HttpEffect::kUnknown;
}

class Shop final : public HttpShop {
 public:
  explicit Shop(World& world)
      : world_(world),
        middleware_(*world.onces.front(), Quiet()),
        guard_(middleware_) {
    server_.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
    server_.Post("/pay", [this](const httplib::Request& request,
                                httplib::Response& response) {
      Serve(request, response);
    });
  }
  ~Shop() override {
    server_.stop();
    if (thread_.joinable()) thread_.join();
  }

  bool Listen() {
    port_ = server_.bind_to_any_port("127.0.0.1");
    if (port_ <= 0) return false;
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    return true;
  }

  void Request(Self& self, const Key& key) override {
    httplib::Client client("127.0.0.1", port_);
    client.set_read_timeout(self.Chance(8) ? self.Between(1, 200)
                                           : milliseconds(kPatience));
    const httplib::Headers headers = {
        {"Idempotency-Key", "\"" + key.name + "\""},
        {"Policy", key.policy},
        {"Seed", std::to_string(self.random()())}};
    const auto answer = client.Post(
        "/pay", headers, key.name + (self.Chance(4) ? "!" : ""), "text/plain");
    if (answer && answer->has_header("Idempotent-Replayed")) {
      self.SawFinal(key.name);
    }
  }

 private:
  using milliseconds = std::chrono::milliseconds;

  void Serve(const httplib::Request& request, httplib::Response& response) {
    // Its choices come with the request.
    Self self(world_, std::stoull(request.get_header_value("Seed")), 0);
    Key key;
    key.name = request.get_header_value("Idempotency-Key");
    key.name = key.name.substr(1, key.name.size() - 2);
    key.policy = request.get_header_value("Policy");
    const v1::ClaimRequest claim = self.NewClaim(key, "http");
    HttpRoute route{.scope = claim.scope(),
                    .policy = claim.policy(),
                    .owner = claim.owner(),
                    .required = true};
    if (claim.has_wait()) route.wait = self.Between(50, 1500);
    route.lease = self.Between(200, 900);
    route.max_run_time = self.Between(500, 3000);
    route.claim_timeout = self.Between(400, 1500);
    route.finalize_timeout = self.Between(300, 1000);
    const auto handler = [&](const httplib::Request&, httplib::Response& said,
                             Execution* execution) {
      return Say(Execute(self, claim, *execution), said);
    };
    const auto resolve = [&](const httplib::Request&, Execution& execution) {
      return Resolve(self, claim, execution);
    };
    guard_.Wrap(route, handler,
                self.Chance(40) ? HttplibGuard::Resolver(nullptr) : resolve)(
        request, response);
  }

  World& world_;
  HttpMiddleware middleware_;
  HttplibGuard guard_;
  httplib::Server server_;
  int port_ = 0;
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpShop>> HttpShop::Start(World& world) {
  auto shop = std::make_unique<Shop>(world);
  if (!shop->Listen()) return absl::UnavailableError("no port for the shop");
  return shop;
}

}  // namespace idempotency::fault
