// Keys that are typed into Swagger UI stay in its memory: `persistAuthorization` is off.
SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#api",
  deepLinking: true,
  defaultModelsExpandDepth: -1, // no list of all schemas below the routes
  displayRequestDuration: true,
  persistAuthorization: false,
  validatorUrl: null, // which would send the description elsewhere
  responseInterceptor: withServer,
});

// The description may call the service by a relative URL; a reader wants to see the whole one.
function withServer(response) {
  if (response.url !== new URL("openapi.json", document.baseURI).href) return response;
  const description = JSON.parse(response.text);
  for (const server of description.servers) server.url = new URL(server.url, document.baseURI).href.replace(/\/$/, "");
  return { ...response, text: JSON.stringify(description) };
}
