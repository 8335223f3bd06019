"""Jobs from RabbitMQ and Kafka."""
