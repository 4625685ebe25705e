// Keys that are typed into Swagger UI stay in its memory: `persistAuthorization` is off.
SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#api",
  deepLinking: true,
  displayRequestDuration: true,
  persistAuthorization: false,
  validatorUrl: null, // which would send the description elsewhere
});
