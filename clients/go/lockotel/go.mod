module redis-lock.example/clients/go/lockotel

go 1.24

require (
	go.opentelemetry.io/otel/metric v1.38.0
	redis-lock.example/clients/go v0.0.0
)

require go.opentelemetry.io/otel v1.38.0 // indirect

replace redis-lock.example/clients/go => ../
