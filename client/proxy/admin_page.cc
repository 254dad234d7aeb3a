#include "client/proxy/admin_page.h"

#include <chrono>
#include <utility>

namespace idempotency {
namespace {

using internal::CallerStream;
using internal::RequestHead;
using internal::ResponseHead;

constexpr std::chrono::seconds kIdleTimeout{60};
constexpr std::chrono::seconds kTimeout{5};
constexpr std::size_t kConnectionsMax = 16;

}  // namespace

absl::StatusOr<std::unique_ptr<AdminPage>> AdminPage::Start(
    const std::string& listen, Sources sources) {
  std::unique_ptr<AdminPage> page(new AdminPage(std::move(sources)));
  auto listener = internal::Listener::Start(
      {.listen = listen, .connections_max = kConnectionsMax}, page->end_,
      page->end_, [own = page.get()](internal::Socket socket) {
        own->Serve(std::move(socket));
      });
  if (!listener.ok()) return listener.status();
  page->listener_ = *std::move(listener);
  return page;
}

AdminPage::~AdminPage() { end_.Ring(); }

void AdminPage::Serve(internal::Socket socket) {
  CallerStream caller(std::move(socket));
  for (;;) {
    const auto request = caller.ReadHead(kIdleTimeout, kTimeout, end_);
    // Nobody has to send anything here.
    if (!request.ok() || !request->has_value() || (*request)->has_body() ||
        !Answer(caller, **request) || !(*request)->keep_alive) {
      return;
    }
  }
}

bool AdminPage::Answer(CallerStream& caller, const RequestHead& request) const {
  ResponseHead head;
  std::string body;
  std::string type = "text/plain; charset=utf-8";
  const std::string path = request.target.substr(0, request.target.find('?'));
  if (request.method != "GET" && request.method != "HEAD") {
    head.status = 405;
    head.fields.emplace_back("Allow", "GET, HEAD");
  } else if (path == "/healthz") {
    const bool draining = sources_.draining();
    head.status = draining ? 503 : 200;
    body = draining ? "draining\n" : "ok\n";
  } else if (path == "/metrics") {
    head.status = 200;
    type = "text/plain; version=0.0.4; charset=utf-8";
    body = sources_.metrics();
  } else {
    head.status = 404;
    body = "/healthz and /metrics are here\n";
  }
  head.fields.emplace_back("Content-Type", type);
  head.framing.length = body.size();
  caller.SetDeadline(std::chrono::steady_clock::now() + kTimeout);
  return caller.WriteHead(head, request.keep_alive).ok() &&
         (request.method == "HEAD" ||
          (caller.WriteBody(body).ok() && caller.EndBody().ok()));
}

}  // namespace idempotency
