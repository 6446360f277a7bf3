//! Route: a path, its handlers and their operations. The router, the authorization and `/openapi.json` are built
//! from the same list.

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::handler::Handler;
use axum::routing::{MethodFilter, MethodRouter};

use super::Shared;
use super::operation::{Endpoint, Operation};

/// HTTP methods as OpenAPI names them.
const EVERY_METHOD: [&str; 8] = ["get", "put", "post", "delete", "options", "head", "patch", "trace"];

pub(super) struct Route {
    pub(super) path: &'static str,
    /// Operations by method.
    pub(super) operations: Vec<(&'static str, Operation)>,
    handlers: MethodRouter<Shared>,
}

impl Route {
    pub(super) fn new(path: &'static str) -> Self {
        Route { path, operations: Vec::new(), handlers: MethodRouter::new() }
    }

    pub(super) fn get<T: 'static>(self, handler: impl Handler<T, Shared>, operation: Operation) -> Self {
        self.on("get", MethodFilter::GET, handler, operation)
    }

    pub(super) fn post<T: 'static>(self, handler: impl Handler<T, Shared>, operation: Operation) -> Self {
        self.on("post", MethodFilter::POST, handler, operation)
    }

    pub(super) fn put<T: 'static>(self, handler: impl Handler<T, Shared>, operation: Operation) -> Self {
        self.on("put", MethodFilter::PUT, handler, operation)
    }

    pub(super) fn delete<T: 'static>(self, handler: impl Handler<T, Shared>, operation: Operation) -> Self {
        self.on("delete", MethodFilter::DELETE, handler, operation)
    }

    /// Adds one handler for all methods.
    pub(super) fn any<T: 'static>(mut self, handler: impl Handler<T, Shared>, operation: &Operation) -> Self {
        self.operations.extend(EVERY_METHOD.map(|method| (method, operation.clone())));
        self.handlers = axum::routing::any(handler);
        self
    }

    fn on<T: 'static>(
        mut self,
        method: &'static str,
        filter: MethodFilter,
        handler: impl Handler<T, Shared>,
        operation: Operation,
    ) -> Self {
        self.operations.push((method, operation));
        self.handlers = self.handlers.on(filter, handler);
        self
    }

    /// Sets the maximum size of the body, in bytes. The default is [`MAX_BODY`](super::MAX_BODY).
    pub(super) fn up_to(mut self, bytes: usize) -> Self {
        self.handlers = self.handlers.layer(DefaultBodyLimit::max(bytes));
        self
    }

    pub(super) fn add_to(self, router: Router<Shared>) -> Router<Shared> {
        router.route(self.path, self.handlers)
    }
}

/// Endpoints of all routes, in their order, each with its path and method.
pub(super) struct Endpoints(Vec<(&'static str, &'static str, Endpoint)>);

impl Endpoints {
    pub(super) fn new(routes: &[Route]) -> Self {
        let endpoints = routes.iter().flat_map(|Route { path, operations, .. }| {
            operations.iter().map(move |(method, operation)| (*path, *method, operation.endpoint))
        });
        Endpoints(endpoints.collect())
    }

    /// Returns the endpoint of a request. A method that the path does not accept gets the first endpoint of the path.
    /// So `HEAD` gets the endpoint of `GET`.
    pub(super) fn find(&self, method: &str, path: &str) -> Option<Endpoint> {
        let is_at = |known: &str| match known.split_once('{') {
            Some((prefix, _)) => path.starts_with(prefix),
            None => path == known,
        };
        let mut here = self.0.iter().filter(|(known, ..)| is_at(known)).peekable();
        let (_, _, first) = **here.peek()?;
        let exact = here.find(|(_, known, _)| known.eq_ignore_ascii_case(method));
        Some(exact.map_or(first, |(_, _, endpoint)| *endpoint))
    }
}
